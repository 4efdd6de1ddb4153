"""MMapGame, compiled: the rules of ``game.py`` on flat tables and one flat vector for a state."""
