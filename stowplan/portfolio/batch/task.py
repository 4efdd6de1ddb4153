"""Finds the inputs of a suite, and reads and solves one input, in any process or on any machine.

A *batch* is the solving of many inputs with the same settings into one output folder. A *suite* is a list of folders, files and
glob patterns, as ``stowplan batch`` and ``stowplan validate`` take it. A *record* is the JSON file with the settings and the
result of an input (:class:`~stowplan.portfolio.batch.records.Record`). An input is *finished* if an earlier batch has written
its record and its plan. This module writes no files; :mod:`stowplan.portfolio.batch.run` writes the outcome that
:func:`solve_task` returns.
"""

from __future__ import annotations

import glob
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files, kinds
from stowplan.deadline import limit_after, read_within
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.frontends import formats
from stowplan.frontends.formats import Opened, is_input, target_for
from stowplan.frontends.read import open_with
from stowplan.kernel.given import XLA
from stowplan.kernel.kind import kind_of
from stowplan.kernel.solve import solve
from stowplan.portfolio.batch.records import Record, Settings, describe_failure

#: Suffixes of the files that a batch writes; such files are not inputs.
_OWN_SUFFIXES = (".plan.json", ".proof.json", ".result.json")

#: Largest number of bytes of an output file's name without its suffix. File systems permit 255 bytes with the suffix.
MOST_BYTES = 240


class Item(msgspec.Struct, frozen=True):
    """An input, and the name of its files in the output folder."""

    path: Path
    """Path of the input."""
    name: str
    """Path of the output files below the output folder without suffix, with ``/`` between folders."""

    def plan_path(self, folder: Path) -> Path:
        """Path of the input's plan below the output folder ``folder``."""
        return folder / f"{self.name}.plan.json"

    def proof_path(self, folder: Path) -> Path:
        """Path of the certificate of the input's bound below the output folder."""
        return folder / f"{self.name}.proof.json"

    def record_path(self, folder: Path) -> Path:
        """Path of the input's record below the output folder."""
        return folder / f"{self.name}.result.json"


def find_inputs(suites: Sequence[str | Path]) -> list[Item]:
    """Find the inputs of folders, files and glob patterns.

    The inputs of a folder are all files in it and its subfolders whose suffix belongs to an input format, such as ``.onnx`` or
    ``.hlo.txt``, also with ``.gz``. Hidden files and files that a batch writes are left out. A JSON file is an input only if
    its content is one. The output folder gets the same subfolders. A file that is named itself or matches a pattern is an input
    whatever its name. An input that occurs several times is listed once.

    Parameters
    ----------
    suites
        Paths and patterns.

    Returns
    -------
    list
        The inputs in the order of ``suites``, and within a folder or a pattern by path, with the names of their output files.

    Raises
    ------
    InputError
        A path does not exist, or a pattern or folder contains no input.
    UsageError
        The output files of two inputs would have the same name, or names that differ only in upper and lower case.
    """
    by_path: dict[Path, Item] = {}
    for suite in suites:
        items = list(_inputs_of(Path(suite)))
        if not items:
            raise InputError("found no input there, expected compiled programs, CSV files or problem files", source=suite)
        for item in items:
            by_path.setdefault(item.path.resolve(), item)
    names: dict[str, Path] = {}
    for item in by_path.values():
        # Some file systems do not distinguish upper and lower case.
        other = names.setdefault(item.name.lower(), item.path)
        if other is not item.path:
            raise UsageError(
                f"{other} and {item.path} would have the same result {item.name}: give them output folders of their own"
            )
    return list(by_path.values())


def _inputs_of(suite: Path) -> Iterator[Item]:
    """The inputs of a folder, a file or a pattern; raises InputError if there is no such file or folder."""
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
    """The name of a file without the suffixes of inputs, short enough for other suffixes to be added."""
    name = path.name.removesuffix(".gz")
    for suffix in (".txt", ".csv", ".json", ".hlo", ".dot", ".gv"):
        name = name.removesuffix(suffix)
    return _shorten(name or path.name)


def _shorten(name: str) -> str:
    """Returns a name of at most :data:`MOST_BYTES` bytes. A longer name is cut, and a hash of the full name is appended."""
    data = os.fsencode(name)
    if len(data) <= MOST_BYTES:
        return name
    return f"{data[: MOST_BYTES - 17].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:16]}"


class Finished(msgspec.Struct, frozen=True):
    """The digests of the problem and of XLA's plan from which the record of a finished input was computed."""

    problem: str
    """Digest of the problem."""
    xla_plan: str | None
    """Digest of XLA's own plan; None if the run did not compare with it."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """An order to read and solve one input, as a message to a worker."""

    path: bytes
    """Path of the input, encoded as the file system has it."""
    folder: bytes
    """Folder that relative paths in the settings refer to, encoded in the same way."""
    input: str
    """Path of the input as its record names it."""
    plan: str
    """Name of the plan's file as the record names it."""
    settings: Settings
    """How to read and solve the input."""
    targets: tuple[str, ...]
    """The targets of the settings, checked."""
    earlier: Finished | None = None
    """The digests of the input's record if the input is finished; None if it is not, or if it must be solved again."""
    kinds: dict[str, str] = {}
    """Import paths, by name, of the kinds that are registered in the sending process. A worker process registers them, because
    it starts with those of the package alone."""
    formats: tuple[str, ...] = ()
    """Modules of the input formats that are registered in the sending process."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a task."""

    record: bytes | None = None
    """Encoded :class:`~stowplan.portfolio.batch.records.Record`; None if the record in the output folder is still right."""
    plan: bytes | None = None
    """The encoded plan; None if there is none."""
    proof: bytes | None = None
    """The encoded certificate of the bound; None if there is none."""
    is_kept: bool = True
    """Whether the outcome is written to files. It is False if the command was called wrongly (UsageError), so that earlier
    results of the input stay."""


def solve_task(task: Task, cancel: threading.Event | None = None) -> Outcome:
    """Read and solve an input, unless it is finished and neither its problem nor XLA's plan has changed.

    Errors become part of the record. Only KeyboardInterrupt is raised, if it comes while the input is being read. Setting
    ``cancel`` ends the run, and the outcome then has the best plan so far, if there is one.
    """
    try:
        _register(task)
        return _solve_unless_finished(task, cancel)
    except Exception as error:
        code, text = describe_failure(error)
        return failure(task, code, text, is_kept=not isinstance(error, UsageError))


def failure(task: Task, code: int, text: str, *, is_kept: bool = True) -> Outcome:
    """The outcome of an input that failed, with the exit code and one line of text that gives the reason."""
    record = Record(input=task.input, settings=task.settings, exit_code=code, error=text)
    return Outcome(files.encode(record), is_kept=is_kept)


def read_problem(path: Path, settings: Settings, targets: tuple[str, ...]) -> Any:
    """Read the problem of an input. Settings that do not apply to its format are ignored.

    Parameters
    ----------
    path
        Path of the input.
    settings
        How to read it.
    targets
        The targets for all inputs, which :func:`~stowplan.frontends.formats.check_targets` has checked. The input is read for
        the target of its sort.

    Raises
    ------
    InputError
        The file cannot be read, or its content is not valid.
    UsageError
        The input needs a target and none is for it, two targets fit, or a setting is not allowed.
    MissingDependencyError
        The format needs an optional package that is not installed.
    """
    return _open(path, settings, targets, Path()).problem


def _open(path: Path, settings: Settings, targets: tuple[str, ...], folder: Path) -> Opened:
    """Read an input for the target of its sort. Relative paths in the settings refer to ``folder``. Raises the errors of
    :func:`read_problem`."""
    table = None if settings.op_table is None else folder / settings.op_table
    return open_with(path, msgspec.structs.replace(settings.inputs, target=target_for(path, targets), op_table=table))


def _xla_plan(path: Path, opened: Opened, folders: Sequence[Path]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """XLA's own plan of a compiled program, and a warning if the plan cannot be used.

    The first result is a dictionary with the plan under the name ``xla``. It is empty if the input is no compiled program, or
    if there are no folders or no usable plan. The plan is read from the first folder that has a file with the input's name.
    """
    if not folders or opened.program is None:
        return {}, ()
    from stowplan.frontends.xla_plan import import_xla_plan

    places = [folder / path.name for folder in folders]
    try:
        imported = import_xla_plan(opened.problem, opened.program, next(filter(Path.is_file, places), places[0]))
    except StowplanError as error:
        return {}, (f"XLA's own plan is left out: {error}",)
    return {XLA: imported.plan}, ()


def _register(task: Task) -> None:
    """Register the kinds and formats that the parent process has registered. Formats are registered in reverse order, because
    the one that is registered last is asked first."""
    for name, place in task.kinds.items():
        kinds.register(name, place)
    for module in reversed(task.formats):
        formats.register(module)


def _solve_unless_finished(task: Task, cancel: threading.Event | None) -> Outcome:
    """Read and solve an input, unless its record is still right; raises all errors of reading and solving."""
    began, settings = time.monotonic(), task.settings
    path, folder = (Path(os.fsdecode(name)) for name in (task.path, task.folder))
    limit = None if settings.deterministic else settings.time_limit
    opened = read_within(limit, lambda: _open(path, settings, task.targets, folder), began)
    problem = opened.problem
    plans, warnings = _xla_plan(path, opened, [folder / xla_plan for xla_plan in settings.xla_plans])
    xla_digest = files.digest(plans[XLA]) if plans else None
    if task.earlier == Finished(kind_of(problem).identity(problem)["digest"], xla_digest):
        return Outcome()
    options = msgspec.structs.asdict(settings.search)
    if not settings.deterministic:
        options["time_limit"] = limit_after(began, settings.time_limit)
    before = time.monotonic() - began
    result = solve(problem, **options, plans=plans, cancel=cancel).within(settings.time_limit, before)
    result = msgspec.structs.replace(result, warnings=(*opened.warnings, *warnings, *result.warnings))
    values = result.to_dict(None if result.plan is None else task.plan)
    record = Record(input=task.input, settings=settings, exit_code=result.exit_code, result=values, xla_plan=xla_digest)
    plan, proof = (None if document is None else files.encode(document) for document in (result.plan, result.certificate))
    return Outcome(files.encode(record), plan, proof)
