"""One measurement each: a film, a cell of the suite, a network alone, the ceilings of a machine."""
