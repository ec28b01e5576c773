"""Live animation: from a camera to any number of sinks, always with the newest picture."""
