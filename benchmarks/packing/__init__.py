"""Packing over CSV files of buffers."""
