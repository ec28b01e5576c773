"""What a file says of itself: colour, HDR, spherical and stereo boxes."""
