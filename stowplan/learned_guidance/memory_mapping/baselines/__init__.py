"""Players that MMap-MuZero is measured against: random moves, evolution strategies, and tree search without learning."""
