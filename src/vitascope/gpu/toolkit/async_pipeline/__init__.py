"""Frames in from any thread, results out in order: decode, preprocess, network, postprocess and encode side by side."""
