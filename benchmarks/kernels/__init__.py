"""Native kernels beside ONNX Runtime's, and passes by operator."""
