"""The tuning guide's checklists as questions with measured answers."""
