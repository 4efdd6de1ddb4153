"""What a caller gives to keep close to: an earlier plan, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files, kinds
from stowplan.arguments import number
from stowplan.errors import InputError, UsageError
from stowplan.frontends.read import read_plan
from stowplan.portfolio.kind import Kind, check, describe_plan, kind_of

#: Name of the earlier plan among the plans at hand.
EARLIER = "earlier"


class KeepClose(msgspec.Struct, frozen=True, kw_only=True):
    """Change as little as can be from an earlier plan.

    Parameters
    ----------
    plan
        The earlier plan: of this problem, or of an earlier version of it.
    within
        What that may cost: a part of the best objective found, 0.01 for a per cent. Where an objective is of two numbers, the
        first is kept and this is a part of the second.
    problem
        The earlier version that the plan is of; None where it is this problem, or where the plan has the names that it takes.
    """

    plan: Any
    within: float = 0.0
    problem: Any = None


def given(value: Any, kind: Kind) -> KeepClose:
    """What was given to ``solve``, checked.

    Raises
    ------
    UsageError
        It is neither a plan of the kind nor a :class:`KeepClose` of one, or its numbers are out of range.
    InputError
        The plan is not valid for the earlier version that it is said to be of.
    """
    found = value if isinstance(value, KeepClose) else KeepClose(plan=value)
    if not isinstance(found.plan, kind.plan_type):
        raise UsageError(f"found {describe_plan(found.plan)} to keep close to, expected a plan of {kind.name}")
    if found.problem is not None:
        if kind_of(found.problem) is not kind:
            raise UsageError(
                f"found an earlier version that is a problem of {kind_of(found.problem).name}, expected one of {kind.name}"
            )
        if not (verified := check(kind, found.problem, found.plan)).ok:
            raise InputError(f"the earlier plan is not valid for the earlier version: {'; '.join(verified.violations[:3])}")
    within = number("a loss of {} to keep close", found.within, 0.0)
    return msgspec.structs.replace(found, within=within)


def read_earlier_plan(path: Path, problem: Any) -> Any:
    """The plan in a file, of this problem or of an earlier version of it.

    Raises
    ------
    InputError
        It has no plan of the problem's kind in it; the message names the file.
    """
    modules = kinds.of_problem(problem)
    if modules.earlier_plan_reader and not files.is_json(path):
        return kinds.load(modules.earlier_plan_reader)(path)
    data = files.read_bytes(path)
    if files.is_json(path) and files.peek_format(data) != modules.plan_format:
        raise InputError(f"found {files.describe(data)}, expected a plan: {modules.plan_format}", source=path, place="format")
    return read_plan(path, problem)
