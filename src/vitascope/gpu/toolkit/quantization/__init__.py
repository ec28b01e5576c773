"""Quantise networks to FP16, INT8 and FP8, measure accuracy and speed, and decide whether to keep the result."""
