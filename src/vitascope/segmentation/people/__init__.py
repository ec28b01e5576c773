"""Finds, follows and recognises the people in a video, and divides the matte among them."""
