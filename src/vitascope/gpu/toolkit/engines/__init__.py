"""Engines as users of the toolkit hold them: build, load, infer, benchmark, over the port of ``gpu/engines``."""
