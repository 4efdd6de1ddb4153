"""The answer to a bank-mapping problem: how everything is computed, what stays on chip, the copies. Data, no rules."""

from __future__ import annotations

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.decisions import Decision, Values


class BankCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A memcopy between banks: a tensor that stays on chip, in another layout."""

    tensor: int
    layout: int
    """What it makes; it copies from the tensor's own layout."""
    before: int
    """Number of the operator it runs before."""


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Choices; :func:`stowplan.models.bank_mapping.verify.verify` says whether they are valid.

    The objective is the weighted bytes moved between banks and to and from main memory.
    """

    options: tuple[int, ...]
    """For each operator, which of its options."""
    layouts: tuple[int, ...]
    """For each tensor its own layout."""
    on_chip: tuple[bool, ...]
    """For each tensor, whether it stays on chip from its first use to its last."""
    copies: tuple[BankCopy, ...] = ()
    """Ascending by operator."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
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
