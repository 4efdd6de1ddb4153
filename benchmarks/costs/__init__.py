"""Cost models against the cycles of a compiler."""
