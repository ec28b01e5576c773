"""The toolkit: classes that others install the runtime for, on top of its kernels, engines, memory and pipeline."""
