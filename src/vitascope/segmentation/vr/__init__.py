"""VR files: from one projection to another, and described for players that read from a server."""
