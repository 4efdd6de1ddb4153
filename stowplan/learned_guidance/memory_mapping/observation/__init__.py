"""What a player sees of a state of MMapGame."""
