"""Reads every input: a problem file, or a file of a front end together with a target."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stowplan import files, kinds
from stowplan.arguments import size
from stowplan.errors import InputError, UsageError
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily, check_name, format_of, formats, look
from stowplan.frontends.options import ReadOptions, spelt, spelt_all
from stowplan.log import UnmodelledWarning, collecting_unmodelled, unmodelled_lines


def read(
    path: str | Path,
    target: str | Path | None = None,
    *,
    capacity: int | str | None = None,
    cost_model: str | None = None,
    stalls: str | None = None,
    donation: str | None = None,
    evictions: str | None = None,
    prefetches: str | None = None,
    cycles: str | Path | Sequence[str | Path] | None = None,
    device: int | None = None,
    precision: str | None = None,
    granularity: str | None = None,
    address_spaces: bool = False,
    dim: Mapping[str, int] | Iterable[str] = (),
    shape: Mapping[str, Sequence[int]] | Iterable[str] = (),
    keep: Iterable[str] = (),
    in_place: str | None = None,
    replace_offline_plan: bool = False,
    rules: Iterable[str] = (),
    fixed: str | Path | None = None,
    op_table: str | Path | None = None,
) -> Any:
    """Reads a problem from a file of any supported format.

    Parameters
    ----------
    path
        A problem file that ``stowplan convert`` has written; a compiled program (scheduled HLO text); a network (layer file or
        ONNX model); a graph for bank mapping (HLO before XLA's optimizations, or ONNX); a graph of operators (JSON, ONNX,
        TensorFlow Lite, a program of ``torch.export``, or HLO) with the target ``order``, ``arena``, ``rematerialization`` or a
        device with several memories; a data-flow graph (JSON or DOT); a memory snapshot of PyTorch; or a CSV file of buffers to
        pack. All of them may be compressed with gzip.
    target
        Name of a target, or path of a target file. Problem files, graphs in JSON, snapshots and CSV files need none. A *target*
        describes the machine for which a plan is made, or names the question that a plan answers, such as ``order``.
    capacity
        Bytes, or text such as ``"1.5 MiB"``: the size of fast memory, or of the fastest tier, instead of the target's; for
        packing, the bytes into which all buffers must fit; for rematerialization, the bytes that may be live at once. None
        means the size that the target or the problem file states; packing and rematerialization have no limit without it.
    cost_model, stalls
        Replace the cost model and the rule about stalls of the target; see :func:`stowplan.hardware.costs.make_problem`.
    donation, evictions, prefetches
        For compiled programs: rules that plans of XLA follow. ``donation="tied"`` makes one tensor from a donated parameter and
        the output in its storage; the default, ``"free"``, makes two. ``evictions="between_steps"`` allows a copy to slow
        memory between two steps; by default (``"whole_steps"``), a copy takes whole steps. ``prefetches="sliced"`` allows
        copies to fast memory in several slices; by default (``"whole"``), a tensor is copied as a whole.
    cycles
        For the cost model ``table``, two files: the module compiled without and with a fast-memory plan, both with cycle
        estimates. For the cost model ``signatures``, latency tables
        (:class:`stowplan.hardware.costs.signatures.LatencyTable`), any number of such modules, or both.
    device
        For memory snapshots of PyTorch: the index of the device; by default the one with the most events.
    precision, granularity, address_spaces
        For networks; ``precision`` also for graphs with a target that has banks. See
        :class:`stowplan.frontends.options.ReadOptions`.
    dim, shape
        Sizes of symbolic dimensions of an ONNX model, such as ``{"batch": 1}``, and shapes of its values, such as
        ``{"x": (1, 3, 224, 224)}``; or the texts of the command line, such as ``["batch=1"]``. ``dim`` also applies to programs
        of ``torch.export``.
    keep
        For graphs of operators: names of inputs whose bytes must not be overwritten before the program ends.
    in_place
        For graphs of operators: ``"elementwise"`` if the runtime writes the result of an element-wise operator over an operand,
        otherwise ``"none"``. None means ``"elementwise"`` for the targets ``order`` and ``rematerialization``, and ``"none"``
        for all others.
    replace_offline_plan
        For TensorFlow Lite models: whether tensors for which the model has offsets are planned again, except those that custom
        operators use.
    rules, fixed, op_table
        For data-flow graphs: rules of the machine as texts ``NAME=VALUE`` (docs/reference/loop-bodies.md), a JSON file with
        instructions whose tile, time or slot is fixed, and a TOML file with the meaning, the latency and the possible tiles of
        operations.

    Returns
    -------
    Problem
        A problem of the kind that belongs to the file (:mod:`stowplan.kinds`).

    Raises
    ------
    InputError
        The file cannot be read or is not valid, or there is no such target; the message says what is wrong, and where.
    UsageError
        An option has a value that is not allowed, or does not apply to a file of this format; or a target is needed
        (:class:`NoTargetError`).
    MissingDependencyError
        A package that reads files of this format, such as onnx or torch, is not installed.
    TimeLimitError
        The caller has set a time limit for reading (:func:`stowplan.deadline.read_within`), and it is over.

    Warns
    -----
    UnmodelledWarning
        A part of the file is not modelled, or not completely.
    """
    options = {name: value for name, value in locals().items() if name != "path"}
    if isinstance(capacity, str):
        options["capacity"] = size("a capacity of {}", capacity)
    opened = open_input(path, ReadOptions(**options))
    for text in opened.warnings:
        warnings.warn(text, UnmodelledWarning, stacklevel=2)
    return opened.problem


class NoTargetError(UsageError):
    """A file needs a target, and none was named.

    Targets are grouped in families (:class:`~stowplan.frontends.formats.TargetFamily`), one for each sort of inputs.

    Parameters
    ----------
    path
        The file.
    what
        Words for such a file, for example ``a network``.
    fitting
        The families of targets for which the file can be read; the family of its format is the first one.
    """

    def __init__(self, path: str | Path, what: str, fitting: Sequence[TargetFamily]):
        self.fitting = tuple(fitting)
        self._file = f"{path} is {what}"
        names = ", ".join(f"{family.example} ({family.answers})" for family in fitting)
        super().__init__(f"{path} is {what}: name a target such as {names}; stowplan targets lists all")

    def for_kind(self, kind: str) -> UsageError:
        """The error for a command that takes problems of a single kind, such as ``operator order``.

        Its message lists only targets with which the file becomes such a problem. If there are none, the message says so.
        """
        names = [name for family in self.fitting if family.kind == kind for name in family.names()]
        if not names:
            return UsageError(f"{self._file}, of which no problem of {kind} can be made")
        listed = names[0] if len(names) == 1 else f"with one of {', '.join(names)}, or the path of a target file"
        return UsageError(f"{self._file} and no target is named, expected --target {listed}")


def open_input(path: str | Path, options: ReadOptions) -> Opened:
    """Like :func:`read`, but also returns the program from which the problem was made, and the warnings.

    Parameters
    ----------
    options
        The options, which are those of :func:`read`.

    Returns
    -------
    Opened
        The problem, the program if the file is a compiled program, and a line for each part of the file that is not modelled.

    Raises
    ------
    InputError
        The file cannot be read or is not valid, or there is no such target; the message says what is wrong, and where.
    UsageError
        An option does not apply to a file of this format.
    NoTargetError
        A target is needed, and none was named.
    MissingDependencyError
        A package that reads files of this format is not installed.
    TimeLimitError
        The caller has set a time limit for reading (:func:`stowplan.deadline.read_within`), and it is over.
    """
    check_name(options.target)
    source = look(path, options.target)
    input_format = format_of(source)
    _check_target(path, source, input_format, options)
    accepted = input_format.accepts(source)
    for name in options.given():
        if name not in accepted:
            found = f"but not {spelt(name)}" if accepted else f"found {spelt(name)}"
            raise UsageError(f"{path} is {input_format.words(source)}: it takes {spelt_all(accepted)}, {found}")
    return _opened(source, input_format, options)


def open_with(path: str | Path, options: ReadOptions) -> Opened:
    """Like :func:`open_input`, but ignores options that do not apply to a file of this format; for batches of many formats.

    It raises the same errors, except for the UsageError about such options.
    """
    source = look(path, options.target)
    input_format = format_of(source)
    _check_target(path, source, input_format, options)
    return _opened(source, input_format, options.only(input_format.accepts(source)))


def _check_target(path: str | Path, source: Source, input_format: InputFormat, options: ReadOptions) -> None:
    """Raises NoTargetError if a target is needed and none was named, and InputError if the file is also empty or damaged.

    This is checked before the options, because the target may decide which options apply to a file.
    """
    if input_format.targets is not None and options.target is None:
        # ``files.head`` returns no bytes for an empty file, and also for a damaged one. In the second case, ``read_bytes``
        # raises the error that says what is damaged.
        if not files.head(path) and not files.read_bytes(path):
            raise InputError("found an empty file, expected an input with content", source=path)
        raise NoTargetError(path, input_format.words(source), _fitting(source, input_format.targets))


def _opened(source: Source, input_format: InputFormat, options: ReadOptions) -> Opened:
    """Opens a file to which all of these options apply, and collects warnings about parts that are not modelled."""
    with collecting_unmodelled() as places:
        opened = input_format.open(source, options)
    return opened._replace(warnings=unmodelled_lines(places))


def _fitting(source: Source, own_family: TargetFamily) -> list[TargetFamily]:
    """The families of targets for which a file can be read, with ``own_family``, that of its format, first."""
    fitting: list[TargetFamily] = []
    for candidate in formats():
        if candidate.targets is not None:
            named = source._replace(target=candidate.targets.example)
            if format_of(named) is candidate and candidate.claims(named) is not False:
                fitting.append(candidate.targets)
    return sorted(fitting, key=lambda family: family is not own_family)


def only_target(path: str | Path, kind: str) -> str | None:
    """The name of the only target for which a file is read as a problem of a kind; None if there is none, or several.

    ``kind`` is the name of a kind, such as ``operator_order``. Raises InputError if the file cannot be read.
    """
    source = look(path)
    own_family = format_of(source).targets
    fitting = [] if own_family is None else _fitting(source, own_family)
    names = [name for family in fitting if family.kind == kind.replace("_", " ") for name in family.names()]
    return names[0] if len(names) == 1 else None


def read_plan(path: str | Path, problem: Any = None) -> Any:
    """Reads a plan of any kind from a file.

    Parameters
    ----------
    path
        Path of a JSON file that ``stowplan solve -o`` has written, possibly compressed with gzip; or path of a file in another
        format that the kind of ``problem`` can read, such as offsets in CSV.
    problem
        The problem of the plan; needed only for files that are not JSON.

    Raises
    ------
    InputError
        The file cannot be read, is no plan, or is not valid; the message names the file and the field.
    UsageError
        ``problem`` is no problem, and the file is not JSON.
    """
    if problem is not None and not files.is_json(path):
        read = kinds.of_problem(problem).read_plan
        if read is not None:
            return read(path, problem)
    data = files.read_bytes(path)
    return kinds.of_plan_file(data, path).plan.decode(data, path)
