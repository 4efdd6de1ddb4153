"""Memory limits of training steps, beside torch's own partitioner."""
