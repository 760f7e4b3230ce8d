"""Readers of graphs: ONNX, torch modules, files of other systems."""
