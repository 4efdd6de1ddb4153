"""Exact modulo scheduling with CP-SAT: a model for one initiation interval (II), and the search over IIs around it."""

from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel
from stowplan.models.modulo_scheduling.cpsat.solve import solve

__all__ = ["ModuloModel", "solve"]
