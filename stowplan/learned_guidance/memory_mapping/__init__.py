"""MMapGame: memory mapping played move by move (Wang et al. 2023); its rules are in ``docs/reference/mmap-game.md``."""
