"""Packing: offsets for buffers whose life spans are fixed (dynamic storage allocation)."""
