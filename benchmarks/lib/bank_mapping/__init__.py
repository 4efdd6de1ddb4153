"""Bank mapping: programs that run in NumPy, with the copies of a plan in them, and the bytes they move."""
