"""Metadata of a file: colour, HDR, spherical and stereo boxes."""
