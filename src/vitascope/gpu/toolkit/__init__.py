"""The toolkit: classes for other programs, on top of the runtime's kernels, engines, memory and pipeline."""
