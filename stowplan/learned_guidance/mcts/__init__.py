"""Monte-Carlo tree search with a model, for any number of actions.

A *model* predicts the policy's probabilities, the value and the consequences of actions. A *visit* of an action is a simulation
that passed the action. Q is the mean return of the visits of an action, and the *prior* is the probability that the policy
gives the action. ``B`` is the number of games that are searched at once, and ``A`` the number of actions.
"""
