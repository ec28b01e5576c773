"""Where a video's mattes come from: the network, its levers, and the cache."""
