"""Tests of what the benchmarks keep and count; their results are in the documentation."""
