"""What a batch is told, and what it says of each input: settings and records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from stowplan import files
from stowplan.arguments import flag, show, whole
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.frontends.options import SharedOptions
from stowplan.models.document import Document
from stowplan.portfolio.context import Options
from stowplan.portfolio.solve_arguments import FAMILIES, check_options

FORMAT = "stowplan.batch.result"
VERSION = 1

#: Exit code of an input that failed for a reason of our own.
INTERNAL_ERROR = 70
#: Exit code of an interrupted run.
CANCELLED = 130

#: Settings that are options of solve, too.
OF_SOLVE = Options.__struct_fields__


class Settings(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read and solve every input of a batch; see :func:`stowplan.read` and :func:`stowplan.solve`.

    Options of inputs are given to those that take them.
    """

    target: str | tuple[str, ...] | None = None
    """One for each kind of input that needs one; problem files and CSV files stand without."""
    op_table: str | None = None
    """Path of a file."""
    time_limit: float = 30.0
    """Seconds for each input, reading included."""
    candidates: tuple[str, ...] = FAMILIES
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    gap: float = 0.0
    memory_limit: int | None = None
    """Bytes for the process of each candidate."""
    baseline: str | None = None
    xla_plans: tuple[str, ...] = ()
    """Folders with XLA's own plans of compiled programs: modules after memory-space assignment, under the inputs' file names.
    They are plans at hand, named ``xla``."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target


class Record(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one input."""

    input: str
    settings: Settings
    exit_code: int
    """What ``stowplan solve`` would have returned for it."""
    error: str | None = None
    """Why there is no result."""
    result: dict[str, Any] | None = None
    """The result as ``stowplan solve --json`` prints it; the plan by its file's name beside this one."""
    xla_plan: str | None = None
    """Digest of XLA's own plan, where there was one at hand."""
    format: str = FORMAT
    version: int = VERSION


def check_settings(settings: Settings) -> Settings:
    """The settings, with plain numbers in them; what depends on an input is left to its turn.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    InputError
        One of ``xla_plans`` is no folder.
    """
    shared = msgspec.structs.asdict(check_options(Options(**{name: getattr(settings, name) for name in OF_SOLVE})))
    for name, kind in get_type_hints(Settings).items():
        value = getattr(settings, name, None)
        if kind == str | None and value is not None and not isinstance(value, str):
            raise UsageError(f"found {name} {show(value)}, expected a name")
    if isinstance(settings.xla_plans, str) or not all(isinstance(each, str) for each in settings.xla_plans):
        raise UsageError(f"found xla_plans {show(settings.xla_plans)}, expected folders")
    for folder in settings.xla_plans:
        if not Path(folder).is_dir():
            raise InputError("found no folder, expected one with modules after XLA's memory-space assignment", source=folder)
    if not isinstance(settings.target, str | tuple | None) or not all(isinstance(each, str) for each in settings.targets):
        raise UsageError(f"found target {show(settings.target)}, expected a name, or names")
    flag("address_spaces {}", settings.address_spaces)
    if settings.capacity is not None:
        shared["capacity"] = whole("a capacity of {} bytes", settings.capacity)
    if isinstance(settings.rules, str) or not all(isinstance(rule, str) for rule in settings.rules):
        raise UsageError(f"found rules {show(settings.rules)}, expected a list of NAME=VALUE")
    return msgspec.structs.replace(settings, **shared)


def worst_code(records: Sequence[Record]) -> int:
    """Exit code of a batch: 0 where every input was solved, else the highest."""
    return max((record.exit_code for record in records), default=0)


def read_records(folder: str | Path) -> dict[str, Record]:
    """Records in and below a folder, by name, sorted.

    Raises
    ------
    InputError
        There is no such folder, no record in it, or one that cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("found no folder, expected one that 'stowplan batch' wrote", source=folder)
    suffix = ".result.json"
    found = {path.relative_to(root).as_posix().removesuffix(suffix): path for path in sorted(root.rglob(f"*{suffix}"))}
    if not found:
        raise InputError(f"found no *{suffix}, expected a folder that 'stowplan batch' wrote", source=folder)
    return {files.printable(name): Record.load(path) for name, path in found.items()}


def describe_failure(error: Exception) -> tuple[int, str]:
    """Exit code and one line, of an input that failed."""
    code = error.exit_code if isinstance(error, StowplanError) else INTERNAL_ERROR
    text = str(error) if isinstance(error, StowplanError) else f"internal error: {type(error).__name__}: {error}"
    # One line that any encoder takes.
    return code, " ".join(text.encode("utf-8", errors="backslashreplace").decode().split())
