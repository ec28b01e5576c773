"""Stereo layouts and projections: pure geometry on frames."""
