"""The neural animator: LivePortrait's networks behind the same port as the mesh animator."""
