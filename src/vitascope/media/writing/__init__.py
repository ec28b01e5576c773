"""Writing media: encoders on the CPU and the GPU, muxing, stream copies, partial files."""
