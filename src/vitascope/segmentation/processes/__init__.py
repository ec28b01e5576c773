"""Cuts a video into stretches that several processes matte and encode."""
