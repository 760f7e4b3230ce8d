"""Where graphs come from: synthetic families, the model zoo, readers of ONNX files and torch modules."""
