"""Several targets for a suite of inputs of several formats: each input gets the one that is made for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stowplan.errors import UsageError
from stowplan.frontends.formats import format_of, look, target_family


def check_targets(targets: Iterable[str]) -> tuple[str, ...]:
    """Targets, by name or path, at most one of a family.

    Raises
    ------
    InputError
        A name that is unknown, or a file that is no target.
    UsageError
        Two targets for inputs of one sort.
    """
    found: dict[str, str] = {}
    for target in targets:
        inputs = target_family(target).inputs
        if inputs in found:
            raise UsageError(
                f"found targets {found[inputs]} and {target}, expected one for each kind of input: both are for {inputs}"
            )
        found[inputs] = target
    return tuple(found.values())


def target_for(path: Path, targets: Iterable[str]) -> str | None:
    """The target of some that is made for an input; None for inputs that stand without one, and where none is made for it.

    Raises
    ------
    InputError
        The file cannot be read.
    UsageError
        Two of the targets take it, and nothing in the file says which is meant.
    """
    given = tuple(targets)
    if not given:
        return None
    fitting = []
    seen = look(path)
    for target in given:
        source = seen._replace(target=target)
        found = format_of(source)
        if found.targets is None or not found.targets.holds(target):
            continue
        # To ask text takes reading all of it, which is for where several targets are left.
        if source.data is None or found.claims(source) is not False:
            fitting.append((target, found, source))
    if len(fitting) > 1:
        fitting = [each for each in fitting if each[1].claims(each[2])] or fitting
    if len(fitting) > 1:
        names = " and ".join(target for target, _, _ in fitting)
        raise UsageError(f"{path} is {fitting[0][1].what} or {fitting[1][1].what}: both {names} take it, expected only one")
    return fitting[0][0] if fitting else None
