"""Live bytes over an order, as numbers: what pictures, report and text show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.report.packing.scene import Scene, build_scene


@dataclass(frozen=True)
class Profile:
    """One plan, ready to be drawn."""

    problem: Problem
    plan: Plan
    live: NDArray[np.int64]
    """Bytes that are live while each operator of the order runs."""
    lives: Lives

    @property
    def peak(self) -> int:
        """Most of them."""
        return int(self.live.max(initial=0))

    def scene(self) -> Scene:
        """The tensors over the order, each run of tensors in one place a box."""
        return build_scene(self.lives.packing, self.lives.offsets(self.plan))


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it is one for this problem; raises :class:`~stowplan.errors.InputError` where it is not."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected an operator order")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same operators and tensors")
    if sorted(plan.order) != list(range(len(problem.ops))):
        raise InputError(f"found an order of {len(plan.order)} entries, expected each of the {len(problem.ops)} operators once")
    if len(plan.offsets) != len(problem.tensors):
        raise InputError(f"found {len(plan.offsets)} offsets, expected one for each of the {len(problem.tensors)} tensors")
    return plan


def build_profile(problem: Problem, plan: Plan) -> Profile:
    """Live bytes of a plan, which need not be valid: a picture may show what is wrong with it."""
    check_fits(problem, plan)
    structure = build(problem)
    return Profile(problem, plan, structure.profile(plan.order), Lives(problem, structure, plan.order))
