"""The toolkit: classes for your own programs, on top of the runtime's kernels, engines, memory and pipeline."""
