"""MediaPipe's selfie networks, and the gate that keeps empty frames empty."""
