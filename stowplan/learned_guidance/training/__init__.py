"""What every agent is trained with: the run loop, checkpoints, policies and curves.

Each file knows only those before it:

- ``checkpoint``: files of agents
- ``curve``: a training curve as a CSV file
- ``run``: what every agent is trained by
- ``settings``: configurations of agents
"""
