"""Pictures out: encoders of the CPU and the GPU, muxing, copied streams, partial files."""
