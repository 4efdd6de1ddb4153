"""Opening a plan with the input that it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions


def open_both(problem: Path, plan: Path, options: ReadOptions) -> tuple[Any, Any, str | None]:
    """Problem, plan, and the target of the plan where it decided: an input that needs one is read for it if none is named.

    Raises
    ------
    UsageError
        The plan was made for a target file: its name is none of those that come with the package.
    """
    from stowplan.frontends.formats import check_regular, format_of, look
    from stowplan.frontends.read import open_input, read_plan

    check_regular(plan)
    # Other tables are plans only for a problem that is known.
    given = read_plan(plan) if files.is_json(plan) else None
    assumed: str | None = None
    if given is not None and options.target is None and format_of(look(problem)).targets is not None:
        assumed = given.target or None
        options = msgspec.structs.replace(options, target=assumed)
    if assumed is not None and not _is_shipped(assumed):
        raise UsageError(f"{plan}: was made for target {assumed!r}, which does not come with stowplan: pass --target FILE")
    opened = open_input(problem, options).problem
    return opened, read_plan(plan, opened) if given is None else given, assumed


def _is_shipped(target: str) -> bool:
    """Whether a target is known by its name."""
    from stowplan.frontends.formats import target_family

    try:
        target_family(target)
    except InputError:
        return False
    return True


def target_hint(assumed: str | None) -> str:
    """What to say of a plan for another problem where its own target was assumed."""
    if assumed is None:
        return ""
    how = "pass --target FILE if that was a file of yours, and all options of the solve"
    return f"; the input was read for the plan's own target {assumed!r}: {how}"
