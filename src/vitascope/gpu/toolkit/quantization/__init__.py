"""Networks in fewer bits: FP16, INT8 and FP8, what that costs in accuracy, what it gains, and whether it is kept."""
