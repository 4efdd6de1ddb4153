"""Transformers and others as different people write them, planned on ``meta`` tensors; ``__main__`` says how they are run."""
