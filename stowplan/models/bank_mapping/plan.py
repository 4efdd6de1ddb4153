"""The plan of a bank-mapping problem: an option for every operator, the tensors that stay on chip, and copies between banks.

This module holds data only; the rules are in the verifier.
"""

from __future__ import annotations

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.decisions import Decision, Values


class BankCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy between banks, which gives a tensor that is on chip in another layout."""

    tensor: int
    layout: int
    """Layout of the copy. It is made from the tensor's own layout."""
    before: int
    """Number of the operator before which the copy runs."""


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option for every operator, a layout for every tensor, and copies between banks.

    :func:`stowplan.models.bank_mapping.verify.verify` says whether the plan is valid. The objective is the weighted number of
    bytes that are moved between banks and to and from main memory.
    """

    options: tuple[int, ...]
    """For each operator, the index of the option that is used."""
    layouts: tuple[int, ...]
    """For each tensor, its own layout."""
    on_chip: tuple[bool, ...]
    """For each tensor, whether it stays on chip from its first to its last use."""
    copies: tuple[BankCopy, ...] = ()
    """The copies, ascending by operator."""
    name: str = ""
    """Name of the problem, for people. A plan belongs to the problem whose digest its field ``problem`` has."""
    target: str = ""
    """Name of the target, for people."""
    format: str = "stowplan.bank_mapping.plan"
    version: int = 1


def _tensors(problem: Problem, plan: Plan) -> dict[int, Values]:
    own = zip(problem.tensors, plan.layouts, plan.on_chip, strict=True)
    return {at: {"layout": tensor.layout_name(layout), "on_chip": stays} for at, (tensor, layout, stays) in enumerate(own)}


def _operators(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {at: {"option": option} for at, option in enumerate(plan.options)}


def _copies(problem: Problem, plan: Plan) -> dict[BankCopy, Values]:
    return {
        copy: {"layout": problem.tensors[copy.tensor].layout_name(copy.layout), "before": problem.operators[copy.before].name}
        for copy in plan.copies
    }


DECISIONS = (
    Decision("tensor", lambda problem, at: problem.tensors[at].name, _tensors),
    Decision("operator", lambda problem, at: problem.operators[at].name, _operators),
    Decision("copy", lambda problem, copy: problem.tensors[copy.tensor].name, _copies),
)
