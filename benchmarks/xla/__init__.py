"""XLA's own plans, and tuning it."""
