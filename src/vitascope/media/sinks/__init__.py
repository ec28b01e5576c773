"""Where live pictures go: a window, a file, a virtual camera, the network. One file for each."""
