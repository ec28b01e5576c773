"""Pictures in: decoders of the CPU and the GPU, sessions, damage, images, cameras."""
