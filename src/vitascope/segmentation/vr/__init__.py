"""VR files: convert projections, verify packed alpha, and describe a folder to players."""
