"""Cost models: how their parameters are fitted."""
