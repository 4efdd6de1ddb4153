"""Orders of least peak beside PyTorch's."""
