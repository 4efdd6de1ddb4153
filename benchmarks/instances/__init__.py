"""The library of instances (``instances/``): families that generate them, and the search that fills its table."""
