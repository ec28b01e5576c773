"""Tuning: which settings are the fastest on this machine, found by measuring."""
