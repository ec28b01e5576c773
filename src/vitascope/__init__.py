"""Cut people out of (VR) video, and bring still portraits to life."""

__version__ = "0.1.0"
