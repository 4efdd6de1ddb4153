"""Training loops as people write them, run within limits and counted by a meter that shares no code with the back end."""
