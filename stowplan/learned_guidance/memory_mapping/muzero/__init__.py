"""MMap-MuZero: the agent of Wang et al. 2023 that learns to play MMapGame. Nothing here imports torch by itself."""
