"""Rematerialization: graphs to measure on, and the tables of docs/results/rematerialization.md."""
