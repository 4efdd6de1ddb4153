"""Inferentia: banks, scratchpad and bandwidths, and affine programs as bank-mapping problems on it."""
