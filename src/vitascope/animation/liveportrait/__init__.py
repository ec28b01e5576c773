"""The neural animator: LivePortrait's networks behind the same interface as the mesh animator."""
