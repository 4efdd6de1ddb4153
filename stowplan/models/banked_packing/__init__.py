"""Banked packing: a bank of memory and an offset in it for each buffer, so that traffic costs least."""
