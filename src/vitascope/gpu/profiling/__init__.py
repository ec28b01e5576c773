"""Measure where time and memory go: spans, kernels, memory, utilisation, and the resulting verdict."""
