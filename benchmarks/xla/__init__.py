"""XLA's own plans, and steering it."""
