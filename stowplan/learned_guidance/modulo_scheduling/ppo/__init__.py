"""PPO for modulo scheduling: a graph network that places a loop body instruction by instruction.

Each file knows only those before it:

- ``network``: the graph network of policy and value
- ``config``: everything that decides how the PPO mapper is trained, with values for processors
- ``lessons``: what is trained on
- ``policy``: a trained mapper on loop bodies it may not have seen, without what trained it
- ``trainer``: training of the PPO mapper
"""
