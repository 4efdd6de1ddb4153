"""Monte-Carlo tree search with a model, for any number of actions.

A *model* predicts the policy's probabilities, the value and the consequences of actions. A *visit* of an action is a simulation
that passed it, Q is the mean return of its visits, and the *prior* is the probability that the policy gives it. ``B`` is the
number of games that are searched at once, and ``A`` the number of actions.
"""
