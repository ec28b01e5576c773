"""Where time and memory go: spans, kernels, memory, utilisation, and the verdict drawn from them."""
