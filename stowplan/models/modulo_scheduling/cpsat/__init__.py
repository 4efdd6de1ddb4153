"""Exact modulo scheduling with CP-SAT: a model for one initiation interval (II), and the search over IIs around it.

Each file imports only files that come before it in this list:

- ``places``: variables and constraints of tiles, and a model that minimizes the II without slots
- ``resources``: constraints of links, memory ports and memory words
- ``model``: the complete model at one initiation interval
- ``questions``: why there is no plan, and the plan that is closest to an earlier one
- ``solve``: the search over initiation intervals
"""

from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel
from stowplan.models.modulo_scheduling.cpsat.solve import solve

__all__ = ["ModuloModel", "solve"]
