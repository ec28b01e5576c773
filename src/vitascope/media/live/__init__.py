"""Live runs: the loop between a source of pictures and the sinks, whatever is made of the pictures in between."""
