"""MMap-MuZero beside other players of MMapGame: tables and figures of Wang et al. 2023."""
