"""Tier placement on the networks of the EGRL paper."""
