"""Outputs of live pictures: a window, a file, other programs, the network."""
