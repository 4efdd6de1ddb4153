"""Arenas and banks of exported PyTorch models beside ExecuTorch's own."""
