"""Damaged files before readers, mutated plans before verifiers."""
