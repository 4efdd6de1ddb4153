"""Monte-Carlo tree search with a model, for any number of actions."""
