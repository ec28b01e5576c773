"""Makes the mattes of a video: the network, its levers, and the cache."""
