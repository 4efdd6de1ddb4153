"""PPO for modulo scheduling: a graph network that places a loop body instruction by instruction."""
