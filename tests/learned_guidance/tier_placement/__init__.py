"""Tests of learned tier placement."""
