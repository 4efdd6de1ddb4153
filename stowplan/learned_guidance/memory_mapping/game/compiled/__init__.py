"""MMapGame, compiled: the rules on flat tables and one flat vector for a state."""
