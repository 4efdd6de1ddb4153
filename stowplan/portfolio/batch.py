"""A suite of inputs, solved one after the other into a folder; what is there already need not be solved again.

Each input gives two files: ``NAME.plan.json`` and, written after it, ``NAME.result.json``, a :class:`Record`. An input
counts as finished when its record is there, is of the same problem and the same settings, and its plan is there too.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.arguments import flag, show, whole
from stowplan.deadline import limit_after, reading_within
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.frontends.formats import is_input
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_with
from stowplan.frontends.targets import check_targets, target_for
from stowplan.models.document import Document
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import kind_of
from stowplan.portfolio.solve import FAMILIES, check_options, solve
from stowplan.result import Result

FORMAT = "stowplan.batch.result"
VERSION = 1

#: Exit code of an input that failed for a reason of our own.
INTERNAL_ERROR = 70
#: Exit code of an interrupted run.
CANCELLED = 130

#: Settings that are options of solve, too.
_OF_SOLVE = Options.__struct_fields__

_OWN_SUFFIXES = (".plan.json", ".result.json")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read and solve every input of a batch; see :func:`stowplan.read` and :func:`stowplan.solve`."""

    target: str | tuple[str, ...] | None = None
    """One for each kind of input that needs one; problem files and CSV files stand without."""
    capacity: int | None = None
    cost_model: str | None = None
    stalls: str | None = None
    donation: str | None = None
    """Given to compiled programs."""
    evictions: str | None = None
    """Given to compiled programs."""
    prefetches: str | None = None
    """Given to compiled programs."""
    precision: str | None = None
    """Given to networks."""
    granularity: str | None = None
    """Given to networks that are ONNX models."""
    address_spaces: bool = False
    """Given to networks."""
    rules: tuple[str, ...] = ()
    """``NAME=VALUE``, given to data-flow graphs."""
    time_limit: float = 30.0
    """Seconds for each input, reading included."""
    candidates: tuple[str, ...] = FAMILIES
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    gap: float = 0.0
    baseline: str | None = None

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
    format: str = FORMAT
    version: int = VERSION


class Item(msgspec.Struct, frozen=True):
    """An input and what its files in the output folder are called."""

    path: Path
    name: str
    """Path below the output folder without suffix, with ``/`` between folders."""

    def plan_path(self, folder: Path) -> Path:
        """Where its plan goes."""
        return folder / f"{self.name}.plan.json"

    def record_path(self, folder: Path) -> Path:
        """Where its record goes."""
        return folder / f"{self.name}.result.json"


def find_inputs(suites: Sequence[str | Path]) -> list[Item]:
    """Inputs of folders, files and glob patterns, in order, each once.

    Of a folder, everything in it or below it whose name ends like an input's is taken (``.hlo``, ``.hlo.txt``, ``.csv``,
    ``.json``, plain or ``.gz``), JSON files only where they are problems; the output has the same folders below it. A file
    that is named, by itself or by a pattern, is taken whatever it is called.

    Parameters
    ----------
    suites
        Paths and patterns.

    Returns
    -------
    list
        In order, each once, with the names of their files in the output folder.

    Raises
    ------
    InputError
        A path that does not exist, or a pattern or folder with nothing in it.
    UsageError
        Two inputs whose files would have the same name.
    """
    found: dict[Path, Item] = {}
    for suite in suites:
        items = list(_inputs_of(Path(suite)))
        if not items:
            raise InputError("found no input there, expected compiled programs, CSV files or problem files", source=suite)
        for item in items:
            found.setdefault(item.path.resolve(), item)
    names: dict[str, Path] = {}
    for item in found.values():
        # Some file systems do not tell upper from lower case.
        other = names.setdefault(item.name.lower(), item.path)
        if other is not item.path:
            raise UsageError(
                f"{other} and {item.path} would have the same result {item.name}: give them output folders of their own"
            )
    return list(found.values())


def run_batch(
    items: Sequence[Item],
    folder: str | Path,
    settings: Settings,
    *,
    fresh: bool = False,
    on_start: Callable[[Item], None] | None = None,
) -> Iterator[tuple[Item, Record, bool]]:
    """Solve inputs one after the other; an input that fails is recorded, and the next one's turn comes.

    Parameters
    ----------
    folder
        For plans and records; made where it is missing.
    fresh
        Solve also what is finished.
    on_start
        Called with each input before it is read.

    Yields
    ------
    Each input with its record, and whether it was finished before. A cancelled run (Ctrl-C) is the last.

    Raises
    ------
    InputError
        The output folder cannot be made or written to, or a target is none.
    UsageError
        A setting of a wrong type or out of range, or two targets for inputs of one kind.
    """
    output = Path(folder)
    settings = check_settings(settings)
    flag("fresh {}", fresh)
    targets = check_targets(settings.targets)
    _make_folder(output)
    for item in items:
        if on_start is not None:
            on_start(item)
        try:
            record, was_finished = _solve_item(item, output, settings, targets, fresh)
        except Exception as error:
            record, was_finished = _failure(item, settings, error), False
            # How the command was called says nothing about the input: what an earlier run made of it stays.
            if not isinstance(error, UsageError):
                item.plan_path(output).unlink(missing_ok=True)
                _write(item, output, record)
        yield item, record, was_finished
        if record.exit_code == CANCELLED:
            return


def check_settings(settings: Settings) -> Settings:
    """The settings, with plain numbers in them; what depends on an input is left to its turn.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    """
    shared = msgspec.structs.asdict(check_options(Options(**{name: getattr(settings, name) for name in _OF_SOLVE})))
    for name in ("cost_model", "stalls", "donation", "evictions", "prefetches", "precision", "granularity", "baseline"):
        value = getattr(settings, name)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"found {name} {show(value)}, expected a name")
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


def _inputs_of(suite: Path) -> Iterator[Item]:
    if suite.is_dir():
        for path in sorted(suite.rglob("*")):
            if path.is_file() and not path.name.endswith(_OWN_SUFFIXES) and is_input(path):
                yield Item(path, (path.relative_to(suite).parent / _stem(path)).as_posix())
    elif suite.exists():
        yield Item(suite, _stem(suite))
    elif glob.has_magic(str(suite)):
        for name in sorted(glob.glob(str(suite), recursive=True)):
            if Path(name).is_file():
                yield Item(Path(name), _stem(Path(name)))
    else:
        raise InputError("cannot read: there is no such file or folder", source=suite)


def _stem(path: Path) -> str:
    """Name of a file without the suffixes of an input."""
    name = path.name.removesuffix(".gz")
    for suffix in (".txt", ".csv", ".json", ".hlo", ".dot", ".gv"):
        name = name.removesuffix(suffix)
    return name or path.name


def _solve_item(item: Item, output: Path, settings: Settings, targets: tuple[str, ...], fresh: bool) -> tuple[Record, bool]:
    began = time.monotonic()
    with reading_within(None if settings.deterministic else settings.time_limit):
        problem = read_problem(item.path, settings, targets)
    if not fresh:
        earlier = _finished(item, output, settings, kind_of(problem).identity(problem)["digest"])
        if earlier is not None:
            return earlier, True
    result = solve(
        problem,
        time_limit=settings.time_limit if settings.deterministic else limit_after(began, settings.time_limit),
        candidates=settings.candidates,
        seed=settings.seed,
        workers=settings.workers,
        deterministic=settings.deterministic,
        gap=settings.gap,
        baseline=settings.baseline,
    )
    return _store(item, output, settings, result), False


def _failure(item: Item, settings: Settings, error: Exception) -> Record:
    code, text = describe_failure(error)
    return Record(input=files.printable(item.path), settings=settings, exit_code=code, error=text)


def describe_failure(error: Exception) -> tuple[int, str]:
    """Exit code and one line, of an input that failed."""
    code = error.exit_code if isinstance(error, StowplanError) else INTERNAL_ERROR
    text = str(error) if isinstance(error, StowplanError) else f"internal error: {type(error).__name__}: {error}"
    # One line that any encoder takes.
    return code, " ".join(text.encode("utf-8", errors="backslashreplace").decode().split())


def read_problem(path: Path, settings: Settings, targets: tuple[str, ...]) -> Any:
    """Problem of an input, with those of the settings that its format takes: a suite may hold all kinds side by side."""
    options = {name: getattr(settings, name) for name in ReadOptions.__struct_fields__ if name in Settings.__struct_fields__}
    return open_with(path, ReadOptions(**options | {"target": target_for(path, targets)})).problem


def _finished(item: Item, output: Path, settings: Settings, digest: str) -> Record | None:
    """Record of an earlier run that this one would only repeat."""
    try:
        record = Record.load(item.record_path(output))
    except InputError:
        return None
    result = record.result
    if result is None or record.settings != settings or record.exit_code == CANCELLED:
        return None
    has_plan = result["plan"] is None or item.plan_path(output).is_file()
    return record if has_plan and result["provenance"]["problem_digest"] == digest else None


def _store(item: Item, output: Path, settings: Settings, result: Result) -> Record:
    """Write plan and record; the record last, so that it vouches for the plan."""
    path = item.plan_path(output)
    _make_folder(path.parent)
    item.record_path(output).unlink(missing_ok=True)
    if result.plan is not None:
        result.plan.save(path)
    else:
        path.unlink(missing_ok=True)
    values = result.to_dict(None if result.plan is None else files.printable(path.name))
    record = Record(input=files.printable(item.path), settings=settings, exit_code=result.exit_code, result=values)
    _write(item, output, record)
    return record


def _write(item: Item, output: Path, record: Record) -> None:
    path = item.record_path(output)
    _make_folder(path.parent)
    record.save(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror or error}", source=folder) from error
