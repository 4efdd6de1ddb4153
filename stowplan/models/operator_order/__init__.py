"""Operator order: in which order a graph's operators run, and where their tensors stand, for the least memory."""
