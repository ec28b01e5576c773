"""The user's own ONNX networks, of a declared kind."""
