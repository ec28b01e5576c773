"""Networks: where they come from, and how they are run."""
