"""MediaPipe's selfie networks, and the presence gate that keeps empty frames empty."""
