"""Other people's instances, machines, solvers and checkers; they are read from checkouts of their own, never copied."""
