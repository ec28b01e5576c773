"""Draws outputs from a frame and its matte: output kinds, backgrounds, the contact sheet."""
