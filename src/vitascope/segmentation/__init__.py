"""The segmentation application: matting, refinement, temporal state, outputs."""
