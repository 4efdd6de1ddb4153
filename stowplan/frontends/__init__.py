"""Readers of foreign formats, and what makes problems of their files."""
