"""A video cut into stretches, each matted and encoded by a process of its own."""
