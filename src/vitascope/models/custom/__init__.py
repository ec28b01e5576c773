"""Any ONNX network of the user's, once its kind is declared."""
