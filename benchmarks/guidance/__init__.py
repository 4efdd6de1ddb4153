"""Guides of memory mapping's search: what they are worth, and the training of the learned one."""
