"""Progress, logs and metrics of jobs."""
