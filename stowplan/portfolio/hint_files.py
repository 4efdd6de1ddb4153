"""Hints in files: for the problem at hand, or for an earlier version of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.read import read_plan
from stowplan.models import hint as hints
from stowplan.models.hint import Hint
from stowplan.portfolio.given import hinted_values
from stowplan.portfolio.kind import check, kind_of


def read_hint_of_earlier(path: Path, earlier: Any, problem: Any) -> Hint:
    """The hint, or the plan, in a file that is for an earlier version of a problem, as a hint for the problem.

    Raises
    ------
    InputError
        As :func:`read_hint`; or a plan that is not valid for the earlier version.
    UsageError
        The kind does not know steps again, or the two are of different kinds.
    """
    kind = kind_of(problem)
    if kind_of(earlier) is not kind:
        raise UsageError(f"found a hint for a problem of {kind_of(earlier).name}, expected one of {kind.name}")
    known = kind.extras().hints
    if known is None:
        raise UsageError(f"found a hint of an earlier version: problems of {kind.title} take none, only their own")
    given = read_hint(path, earlier)
    plan = hints.plan_of(given) if isinstance(given, Hint) else given
    if plan is not None and not (verification := check(kind, earlier, plan)).ok:
        raise InputError(f"not valid for the earlier version: {'; '.join(verification.lines[:3])}", source=path)
    (values,) = hinted_values(kind, earlier, given, plan)
    values = msgspec.structs.replace(values, plan=None if plan is None else msgspec.to_builtins(plan))
    return known.transferred(problem, earlier, values)


def read_hint(path: Path, problem: Any) -> Any:
    """The hint, or the plan, in a file.

    Raises
    ------
    InputError
        It is neither, or not for this problem; the message names the file.
    """
    data = files.read_bytes(path)
    if files.peek_format(data) == hints.FORMAT:
        hint = Hint.decode(data, path)
        try:
            hints.check(problem, hint, kind_of(problem).extras().hints)
        except InputError as error:
            raise error.within(path) from None
        return hint
    kind = kind_of(problem)
    if files.is_json(path) and files.peek_format(data) != kind.plan_format:
        expected = f"expected a hint or a plan: {hints.FORMAT}, {kind.plan_format}"
        raise InputError(f"found {files.describe(data)}, {expected}", source=path, place="format")
    plan = read_plan(path, problem)
    if plan.problem != problem.digest:
        found, expected = brief(plan.problem, hints.NAME), brief(problem.digest, hints.NAME)
        raise InputError(f"found a plan for the problem {found}, expected {expected}", source=path, place="problem")
    return plan
