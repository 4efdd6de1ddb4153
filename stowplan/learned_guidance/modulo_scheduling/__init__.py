"""Learned guidance for modulo scheduling: mappings built place by place, the Gymnasium environment, and the PPO agent."""
