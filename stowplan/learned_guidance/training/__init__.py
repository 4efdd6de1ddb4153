"""What every agent is trained with: the run loop, checkpoints, policies and curves."""
