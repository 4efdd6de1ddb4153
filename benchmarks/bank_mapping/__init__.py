"""Elimination of data movement and bank mapping beside the Inferentia paper."""
