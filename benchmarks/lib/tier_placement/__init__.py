"""Tier placement: networks made of others, and a policy that learns from linear relaxations."""
