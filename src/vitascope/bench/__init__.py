"""Benchmarks: the suite, its results, comparisons and explanations."""
