"""Modulo scheduling over kernels and graphs of CGRA suites."""
