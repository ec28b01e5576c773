"""Measuring, explaining and tuning: what turns "it is slow" into "do this"."""
