"""What a person sees while a job runs, and after it."""
