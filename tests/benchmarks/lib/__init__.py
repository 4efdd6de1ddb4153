"""Tests of what benchmarks share."""
