"""Measuring and explaining: the suite, its results, comparisons, and what they mean."""
