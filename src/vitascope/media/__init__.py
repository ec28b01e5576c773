"""The world outside: files in, files out."""
