"""The neural animator: LivePortrait's networks behind the port that the mesh animator has."""
