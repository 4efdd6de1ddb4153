"""Exact modulo scheduling with CP-SAT: a model for one interval, and the search over intervals around it."""

from stowplan.models.modulo_scheduling.cpsat.model import IntervalModel
from stowplan.models.modulo_scheduling.cpsat.solve import Outcome, solve

__all__ = ["IntervalModel", "Outcome", "solve"]
