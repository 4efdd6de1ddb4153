"""Tier placement: in which memory the weights and the output activation of every layer of a network stand."""
