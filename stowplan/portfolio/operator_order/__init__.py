"""Operator order in the portfolio: heuristics, exact search, and the candidates they are."""
