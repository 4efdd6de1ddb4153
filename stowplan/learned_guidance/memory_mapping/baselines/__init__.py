"""Players that MMap-MuZero is measured against: random moves, evolution strategies, local search, and tree search without
learning.
"""
