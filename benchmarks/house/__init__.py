"""The package itself: its size, and whether its plans are the same."""
