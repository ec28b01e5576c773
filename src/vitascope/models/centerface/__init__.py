"""CenterFace: faces of any size."""
