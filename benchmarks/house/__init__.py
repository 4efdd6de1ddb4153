"""The package itself: its size, whether its plans are the same, and how its pages and modules are read (``reading.md``)."""
