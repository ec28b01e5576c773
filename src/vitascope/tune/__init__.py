"""Tuning: find the fastest settings for this machine by measuring."""
