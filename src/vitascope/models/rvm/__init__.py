"""RobustVideoMatting (Lin et al., WACV 2022): from the authors' ONNX file, and a network of our own in PyTorch."""
