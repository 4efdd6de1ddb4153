"""Transformations of programs before they become problems."""
