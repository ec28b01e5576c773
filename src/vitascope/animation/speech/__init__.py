"""Drives a portrait by a voice: from sound to lip and head motion."""
