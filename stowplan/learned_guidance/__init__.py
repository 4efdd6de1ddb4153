"""Learned policies and the hints they give."""
