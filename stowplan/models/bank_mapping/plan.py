"""The plan of a bank-mapping problem: an option for every operator, the tensors that stay on chip, and copies between banks.

An *option* is a way to compute an operator, with a *layout* for each tensor that it reads or writes. A layout says along which
dimension a tensor is spread over the banks. This module defines the data; the verifier checks the rules.
"""

from __future__ import annotations

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.decisions import Decision, Values


class BankCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy between banks, which produces a tensor that is on chip in another layout."""

    tensor: int
    """Number of the tensor."""
    layout: int
    """Layout of the copy. The copy is made from the tensor's own layout."""
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
    """For each tensor, its own layout, in which it is written or, for an input, loaded."""
    on_chip: tuple[bool, ...]
    """For each tensor, whether it stays on chip from its first to its last use; otherwise it is in main memory."""
    copies: tuple[BankCopy, ...] = ()
    """The copies, ascending by operator."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Name of the target, for people."""
    format: str = "stowplan.bank_mapping.plan"
    version: int = 1


def _tensors(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The decisions about each tensor, by its number, in a form that can be compared."""
    own = zip(problem.tensors, plan.layouts, plan.on_chip, strict=True)
    return {at: {"layout": tensor.layout_name(layout), "on_chip": stays} for at, (tensor, layout, stays) in enumerate(own)}


def _operators(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The option of each operator, by its number, as a decision that can be compared."""
    return {at: {"option": option} for at, option in enumerate(plan.options)}


def _copies(problem: Problem, plan: Plan) -> dict[BankCopy, Values]:
    """The copies of a plan as decisions that can be compared."""
    return {
        copy: {"layout": problem.tensors[copy.tensor].layout_name(copy.layout), "before": problem.operators[copy.before].name}
        for copy in plan.copies
    }


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (
    Decision("tensor", lambda problem, at: problem.tensors[at].name, _tensors),
    Decision("operator", lambda problem, at: problem.operators[at].name, _operators),
    Decision("copy", lambda problem, copy: problem.tensors[copy.tensor].name, _copies),
)
