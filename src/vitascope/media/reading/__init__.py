"""Reads pictures: decoders on CPU and GPU, sessions, damage, images, cameras."""
