"""Kinds of other packages."""
