"""Chips with banked on-chip memory, such as Inferentia: their target files, and bank-mapping problems of affine programs."""
