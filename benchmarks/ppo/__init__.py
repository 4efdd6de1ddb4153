"""The PPO mapper beside its controls."""
