"""Benchmarks of certificates."""
