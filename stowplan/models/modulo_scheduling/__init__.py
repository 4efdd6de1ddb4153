"""Modulo scheduling on a coarse-grained reconfigurable array: which instruction runs on which tile, and when."""
