"""Memory mapping: players to compare with, programs to learn from, and how its guide and its policy are trained."""
