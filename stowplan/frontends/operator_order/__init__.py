"""Front ends that make a graph of operators and tensors: ONNX, torch.export, HLO and graph files."""
