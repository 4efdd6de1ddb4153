"""One reader for every input: a problem file, or a front end's file together with a target."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stowplan import files, kinds
from stowplan.arguments import size
from stowplan.errors import UsageError
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
    """Problem from a file, whatever kind it is.

    Parameters
    ----------
    path
        A problem file written by ``stowplan convert``, a compiled program (scheduled HLO text), a network (layer file or ONNX
        model), a graph for banks (HLO before XLA's optimisations, or ONNX), a graph of operators (JSON, ONNX, TensorFlow Lite,
        a program of ``torch.export`` or HLO, with the target ``order``, ``arena``, ``rematerialization`` or a device with
        several memories), a data-flow graph (JSON or DOT), a memory snapshot of PyTorch or a CSV file of buffers to pack; each
        plain or gzip.
    target
        Name of a target, or path of a target file; needed for all but problems, graphs, snapshots and CSV files.
    capacity
        Bytes, or text such as ``"1.5 MiB"``: of fast memory (of the fastest tier), in place of the target's; for packing, the
        bytes to fit into; for rematerialization, those that may be live at once.
    cost_model, stalls
        In place of the target's own; see :func:`stowplan.hardware.costs.make_problem`.
    donation, evictions, prefetches
        For compiled programs, freedoms that XLA's plans use: ``donation="tied"`` makes a donated parameter and the output in
        its storage one tensor, ``evictions="between_steps"`` has a copy out leave its place between two steps,
        ``prefetches="sliced"`` takes plans whose copies in come in slices.
    cycles
        For the ``table`` cost model two files: the module compiled without and with a fast-memory plan, with cycles in it. For
        the ``signatures`` cost model latency tables (:class:`stowplan.hardware.costs.signatures.LatencyTable`), or any number
        of such modules, or both.
    device
        For memory snapshots of PyTorch, the device; the one with the most events if left out.
    precision, granularity, address_spaces
        For networks; graphs for a target with banks take the precision, too. See
        :class:`stowplan.frontends.options.ReadOptions`.
    dim, shape
        Sizes that an ONNX model leaves open (``dim`` those of a program of ``torch.export``, too): ``{"batch": 1}``, and
        shapes of values, ``{"x": (1, 3, 224, 224)}``; or texts as the command line has them.
    keep
        Inputs that must survive the run, of graphs for the targets ``order`` and ``arena``.
    in_place
        ``"elementwise"`` where the runtime has results of element-wise operators take the bytes of an operand, else
        ``"none"``; None: the first for the target ``order``, the second for ``arena``.
    replace_offline_plan
        For TensorFlow Lite models: plan tensors anew for which the model has offsets, but for those of custom operators.
    rules, fixed, op_table
        For data-flow graphs: texts ``NAME=VALUE`` (docs/reference/loop-bodies.md), a file of fixed instructions, and a TOML
        file that says what ops mean and cost.

    Returns
    -------
    Problem
        Of the kind that the file is of (:mod:`stowplan.kinds`).

    Raises
    ------
    InputError
        What is wrong with the file, and where.
    UsageError
        An option that a file of this format does not take, or no target where one is needed.

    Warns
    -----
    UnmodelledWarning
        The file has something that is not modelled, or not all of it.
    """
    given = {name: value for name, value in locals().items() if name != "path"}
    if isinstance(capacity, str):
        given["capacity"] = size("a capacity of {}", capacity)
    opened = open_input(path, ReadOptions(**given))
    for text in opened.warnings:
        warnings.warn(text, UnmodelledWarning, stacklevel=2)
    return opened.problem


class NoTargetError(UsageError):
    """A file that can be planned for several sorts of targets, and none is named.

    Attributes
    ----------
    fitting
        The families of targets that it can be read for, its own first.
    """

    def __init__(self, path: str | Path, what: str, fitting: Sequence[TargetFamily]):
        self.fitting = tuple(fitting)
        names = ", ".join(f"{family.example} ({family.answers})" for family in fitting)
        super().__init__(f"{path} is {what}: name a target such as {names}; stowplan targets lists all")


def open_input(path: str | Path, options: ReadOptions) -> Opened:
    """As :func:`read`, with the program beside the problem.

    Parameters
    ----------
    options
        As the parameters of :func:`read`.

    Returns
    -------
    Opened
        The problem, the program that it was made of where it is a compiled one, and what of it is not modelled.

    Raises
    ------
    InputError
        What is wrong with the file, and where.
    UsageError
        An option that a file of this format does not take.
    NoTargetError
        No target is named, and one is needed.
    """
    check_name(options.target)
    source = look(path, options.target)
    input_format = format_of(source)
    _check_target(path, source, input_format, options)
    accepted = input_format.accepts(source)
    for name in options.given():
        if name not in accepted:
            raise UsageError(f"{path} is {input_format.what}: it takes {spelt_all(accepted)}, but not {spelt(name)}")
    return _opened(source, input_format, options)


def open_with(path: str | Path, options: ReadOptions) -> Opened:
    """As :func:`open_input`, without the options that a file of this format does not take: for suites of many formats."""
    source = look(path, options.target)
    input_format = format_of(source)
    _check_target(path, source, input_format, options)
    return _opened(source, input_format, options.only(input_format.accepts(source)))


def _check_target(path: str | Path, source: Source, input_format: InputFormat, options: ReadOptions) -> None:
    """Raise NoTargetError where a target is needed, and none is named. Which options a file takes may depend on it."""
    if input_format.targets is not None and options.target is None:
        raise NoTargetError(path, input_format.what, _fitting(source, input_format.targets))


def _opened(source: Source, input_format: InputFormat, options: ReadOptions) -> Opened:
    """The problem of a file that takes all of these options."""
    with collecting_unmodelled() as places:
        opened = input_format.open(source, options)
    return opened._replace(warnings=unmodelled_lines(places))


def _fitting(source: Source, own: TargetFamily) -> list[TargetFamily]:
    """The families of targets that a file can be read for, its own first; InputError where it is none of these formats."""
    fitting: list[TargetFamily] = []
    for candidate in formats():
        if candidate.targets is not None:
            named = source._replace(target=candidate.targets.example)
            if format_of(named) is candidate and candidate.claims(named) is not False:
                fitting.append(candidate.targets)
    return sorted(fitting, key=lambda family: family is not own)


def only_target(path: str | Path, kind: str) -> str | None:
    """The one target for which a file is read as a problem of a kind; None where there is none, or a choice of several."""
    source = look(path)
    own = format_of(source).targets
    fitting = [] if own is None else _fitting(source, own)
    names = [name for family in fitting if family.kind == kind.replace("_", " ") for name in family.names()]
    return names[0] if len(names) == 1 else None


def read_plan(path: str | Path, problem: Any = None) -> Any:
    """Plan of whatever kind from a plan file.

    Parameters
    ----------
    path
        JSON as ``stowplan solve -o`` writes it, plain or gzip; or what the kind of ``problem`` reads besides, such as
        offsets in CSV.
    problem
        The plan's problem; needed for files that are not JSON.

    Raises
    ------
    InputError
        What is wrong, with file and field.
    """
    if problem is not None and not files.is_json(path):
        read = kinds.of_problem(problem).read_plan
        if read is not None:
            return read(path, problem)
    data = files.read_bytes(path)
    return kinds.of_plan_file(data, path).plan.decode(data, path)
