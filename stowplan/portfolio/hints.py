"""What a caller gives as a hint: read, checked, and taken apart into a plan to start from and values to follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.read import read_plan
from stowplan.kinds import load
from stowplan.models import hint as hints
from stowplan.models.hint import Hint
from stowplan.portfolio.kind import Kind, check, describe_plan, kind_of

#: Name of the plan that comes with a hint.
HINT = "hint"


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
    if not kind.modules.transfer:
        raise UsageError(f"found a hint of an earlier version: problems of {kind.modules.title} take none, only their own")
    given = read_hint(path, earlier)
    plan = hints.plan_of(given) if isinstance(given, Hint) else given
    if plan is not None and not (found := check(kind, earlier, plan)).ok:
        raise InputError(f"not valid for the earlier version: {'; '.join(found.violations[:3])}", source=path)
    (values,) = hinted_values(kind, earlier, given, plan)
    values = msgspec.structs.replace(values, plan=None if plan is None else msgspec.to_builtins(plan))
    transferred: Hint = load(kind.modules.transfer)(problem, earlier, values)
    return transferred


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
            hints.check(problem, hint)
        except InputError as error:
            raise error.within(path) from None
        return hint
    kind = kind_of(problem)
    if files.is_json(path) and files.peek_format(data) != kind.modules.plan_format:
        expected = f"expected a hint or a plan: {hints.FORMAT}, {kind.modules.plan_format}"
        raise InputError(f"found {files.describe(data)}, {expected}", source=path, place="format")
    plan = read_plan(path, problem)
    if plan.problem != problem.digest:
        found, expected = brief(plan.problem, hints.NAME), brief(problem.digest, hints.NAME)
        raise InputError(f"found a plan for the problem {found}, expected {expected}", source=path, place="problem")
    return plan


def hinted_plan(kind: Kind, problem: Any, hint: Any) -> Any:
    """The plan of a hint, or that is given as one; None where there is none. It has not been verified.

    Raises
    ------
    UsageError
        It is neither a hint nor a plan of the kind, or has values that the kind does not take.
    InputError
        It is a hint for something else, or damaged.
    """
    if isinstance(hint, Hint):
        hints.check(problem, hint)
        return hints.plan_of(hint)
    if hint is not None and not isinstance(hint, kind.plan_type):
        raise UsageError(
            f"found {describe_plan(hint)} as the hint, expected a stowplan.models.hint.Hint or a plan of {kind.name}"
        )
    return hint


def hinted_values(kind: Kind, problem: Any, hint: Any, plan: Any) -> list[Hint]:
    """The values of a hint without its plan, or those of the plan; nothing where the kind takes no values.

    Parameters
    ----------
    kind, problem
        What is to be solved.
    hint
        As it was given, checked.
    plan
        What :func:`hinted_plan` found in it, verified.
    """
    if isinstance(hint, Hint) and hint.values:
        return [msgspec.structs.replace(hint, plan=None)]
    if plan is None or not kind.modules.hint:
        return []
    found: Hint = load(f"{kind.modules.hint}:of_plan")(problem, plan)
    return [msgspec.structs.replace(found, plan=None)]
