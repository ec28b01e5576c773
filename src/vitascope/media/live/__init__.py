"""Live runs: the loop between a source of pictures and the sinks."""
