"""Operator orders drawn: live bytes over the order, other plans' as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.report.packing.drawing import Layout, build_layout
from stowplan.report.scene import (
    DASHED,
    RULE,
    USAGE,
    Key,
    Line,
    Mark,
    Panel,
    Picture,
    Plot,
    area,
    byte_axis,
    level,
    number_axis,
    steps,
)
from stowplan.report.units import byte_unit, format_bytes, shorten

_HIGH = 260.0


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

    def layout(self) -> Layout:
        """The tensors over the order, each run of tensors in one place a box."""
        return build_layout(self.lives.packing, self.lives.offsets(self.plan))


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


def plot(profiles: Sequence[tuple[str, Profile]], bound: int | None = None) -> Plot:
    """Live bytes of the first plan as an area, those of the others as lines, and the bound."""
    top = max(1, *(profile.peak for _, profile in profiles))
    count = len(profiles[0][1].live)
    across = number_axis(0, max(1, count), "operator")
    edges = list(range(count + 1))
    marks: list[Mark] = [area(steps(edges, profiles[0][1].live.tolist()), USAGE)]
    marks += [Line(steps(edges, profile.live.tolist()), RULE) for _, profile in profiles[1:]]
    legend = [
        Key(
            shorten(f"{label}: peak {format_bytes(each.peak, 6)}, arena {format_bytes(each.plan.arena, 6)}", 60),
            RULE if number else USAGE,
            "line" if number else "patch",
        )
        for number, (label, each) in enumerate(profiles)
    ]
    if bound is not None:
        marks.append(level(across, bound, DASHED))
        legend.append(Key(f"the proven bound, {format_bytes(bound, 6)}", DASHED, "line"))
    up = byte_axis(max(top, bound or 0), f"live ({byte_unit(top)[0]})")
    return Plot(across, [Panel(up, marks, _HIGH, f"Live bytes over the order of {count} operators")], legend=legend)


def picture(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Picture:
    """Live bytes of one labelled plan, or of one beside another."""
    profiles = [(label, build_profile(problem, plan)) for label, plan in plans]
    return Picture(f"{problem.name or 'graph'}: {len(problem.ops):,} operators", [[plot(profiles)]], 560)
