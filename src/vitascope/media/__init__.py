"""Input and output: reading and writing media files, cameras and live outputs."""
