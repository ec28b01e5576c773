"""What results mean: tables, drawings, targets and recommendations."""
