"""What a call costs, limits, and what is killed."""
