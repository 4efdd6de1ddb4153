"""Exact modulo scheduling with CP-SAT: a model for one initiation interval (II), and the search over IIs around it.

Each file knows only those before it:

- ``places``: space alone
- ``resources``: what values take on their way
- ``model``: modulo scheduling at one initiation interval, as a CP-SAT model
- ``questions``: two more questions that the model answers
- ``solve``: the search over initiation intervals
"""

from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel
from stowplan.models.modulo_scheduling.cpsat.solve import solve

__all__ = ["ModuloModel", "solve"]
