"""The mesh animator: the portrait is a texture on a face that is bent, and everything around it follows."""
