"""One reader for every input: a problem file, or a front end's file together with a target."""

from __future__ import annotations

import operator
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from stowplan import files
from stowplan.arguments import whole
from stowplan.errors import InputError, UsageError
from stowplan.hardware.program import Program
from stowplan.models.memory_mapping.problem import Stalls
from stowplan.models.modulo_scheduling.problem import Problem as LoopProblem
from stowplan.models.packing import csv_files
from stowplan.models.packing import problem as packing_problem
from stowplan.models.tier_placement.problem import Problem as TierProblem
from stowplan.portfolio import registry
from stowplan.portfolio.graphs import is_bank_target, open_graph
from stowplan.portfolio.loop_bodies import NO_LOOP_OPTIONS, LoopOptions, is_loop_body, open_loop_body, with_fixed
from stowplan.portfolio.networks import AS_THE_FILE_SAYS, NetworkOptions, is_network, open_network, with_capacity


class Opened(NamedTuple):
    """A problem, and the program it was made of where it came from a front end."""

    problem: Any
    program: Program | None


def read(
    path: str | Path,
    target: str | Path | None = None,
    *,
    capacity: int | None = None,
    cost_model: str | None = None,
    stalls: str | None = None,
    cycles: tuple[str | Path, str | Path] | None = None,
    network: NetworkOptions = AS_THE_FILE_SAYS,
    loop: LoopOptions = NO_LOOP_OPTIONS,
) -> Any:
    """Problem from a file, whatever kind it is.

    Parameters
    ----------
    path
        A problem file written by ``stowplan convert``, a compiled program (scheduled HLO text), a network (layer file or ONNX
        model), a data-flow graph (JSON or DOT) or a CSV file of buffers to pack; each plain or gzip.
    target
        Name of a target, or path of a target file; needed for compiled programs and networks, refused for problem files.
    capacity
        Bytes of fast memory (of the fastest tier), in place of the target's; for packing, the bytes to fit into.
    cost_model, stalls
        In place of the target's own; see :func:`stowplan.hardware.costs.make_problem`.
    cycles
        For the ``table`` cost model: the module compiled without and with a fast-memory plan, with cycles in it.
    network
        For networks: precision, granularity, address spaces; of these, graphs for a target with banks take the precision.
    loop
        For data-flow graphs: the machine's rules, what becomes of inputs, and fixed instructions.

    Raises
    ------
    InputError
        What is wrong with the file, and where.
    UsageError
        A target where none belongs, or none where one is needed; a capacity that is no whole number.
    """
    return open_input(
        path, target, capacity=capacity, cost_model=cost_model, stalls=stalls, cycles=cycles, network=network, loop=loop
    ).problem


def read_plan(path: str | Path, problem: Any = None) -> Any:
    """Plan of whatever kind from a plan file; raises :class:`~stowplan.errors.InputError` naming file and field.

    A table of buffers with offsets (CSV) is a plan for a packing ``problem``, and only together with it.
    """
    if csv_files.is_packing_csv(path) and isinstance(problem, packing_problem.Problem):
        return csv_files.read_plan(path, problem)
    data = files.read_bytes(path)
    found = files.peek_format(data)
    for kind in registry.kinds():
        if found == kind.plan_format:
            return kind.decode_plan(data, path)
    known = ", ".join(kind.plan_format for kind in registry.kinds())
    raise InputError(f"found {files.describe(data)}, expected a plan: {known}", source=path)


def check_regular(path: str | Path) -> None:
    """Raise :class:`~stowplan.errors.InputError` for a file that is missing, or can only be read once (a pipe)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    except ValueError as error:
        raise InputError(f"cannot read: {error}", source=path) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"found {what}, expected a file", source=path)


def _whole_bytes(capacity: Any) -> int:
    """A capacity as an int; raises UsageError for what is no whole number (of Python or NumPy)."""
    try:
        if not isinstance(capacity, bool):
            return operator.index(capacity)
    except TypeError:
        pass
    raise UsageError(f"found capacity {capacity!r}, expected a whole number of bytes")


def open_input(
    path: str | Path,
    target: str | Path | None = None,
    *,
    capacity: int | None = None,
    cost_model: str | None = None,
    stalls: str | None = None,
    cycles: tuple[str | Path, str | Path] | None = None,
    network: NetworkOptions = AS_THE_FILE_SAYS,
    loop: LoopOptions = NO_LOOP_OPTIONS,
) -> Opened:
    """As :func:`read`, with the program beside the problem."""
    if capacity is not None:
        capacity = _whole_bytes(capacity)
    if stalls is not None and stalls not in get_args(Stalls):
        raise UsageError(f"found stalls {stalls!r}, expected one of {', '.join(get_args(Stalls))}")
    if capacity is not None:
        capacity = whole("a capacity of {} bytes", capacity)
    check_regular(path)
    # A problem file says what it is in its first bytes; a program is read by its own front end.
    data = files.read_bytes(path) if files.is_json(path) else None
    if is_loop_body(path, data, target):
        if (
            capacity is not None
            or cost_model is not None
            or stalls is not None
            or cycles is not None
            or network != AS_THE_FILE_SAYS
        ):
            raise UsageError(
                f"{path} is a data-flow graph: it takes a machine, rules and fixed instructions, and no other options"
            )
        return Opened(open_loop_body(path, target, loop), None)
    if data is None and target is not None and is_bank_target(target):
        only_precision = msgspec.structs.replace(AS_THE_FILE_SAYS, precision=network.precision)
        if cost_model is not None or stalls is not None or cycles is not None or network != only_precision:
            raise UsageError(
                f"{target} is a target with banks: it takes a graph, a capacity and a precision, and no other options"
            )
        return Opened(open_graph(path, target, capacity, network.precision), None)
    if is_network(path, data):
        if loop != NO_LOOP_OPTIONS:
            raise UsageError(f"{path} is no data-flow graph: rules and fixed instructions are for those")
        if cost_model is not None or stalls is not None or cycles is not None:
            raise UsageError(f"{path} is a network: it takes a target and a precision, but no cost model, stalls or cycles")
        return Opened(open_network(path, target, network, capacity), None)
    if network != AS_THE_FILE_SAYS:
        raise UsageError(f"{path} is no network: precision, granularity and address spaces are for those")
    if data is not None:
        problem = registry.decode_problem(data, path)
        if problem is None:
            known = ", ".join(kind.problem_format for kind in registry.kinds())
            raise InputError(f"found {files.describe(data)}, expected a problem: {known}", source=path)
        if (
            isinstance(problem, LoopProblem)
            and target is None
            and loop.fixed is not None
            and loop == LoopOptions(fixed=loop.fixed)
        ):
            return Opened(with_fixed(problem, loop), None)
        if loop != NO_LOOP_OPTIONS:
            raise UsageError(f"{path} is a problem already: rules were fixed when it was made")
        if target is not None or cost_model is not None or cycles is not None:
            raise UsageError(f"{path} is a problem already: target and cost model were fixed when it was made")
        if stalls is not None and not hasattr(problem, "stalls"):
            raise UsageError(f"{path} is a problem without copies: it takes no stalls")
        if capacity is not None and isinstance(problem, TierProblem):
            return Opened(with_capacity(problem, capacity), None)
        if capacity is not None and not hasattr(problem, "capacity"):
            raise UsageError(f"{path} is a problem that takes no capacity")
        changes = {name: value for name, value in (("capacity", capacity), ("stalls", stalls)) if value is not None}
        return Opened(msgspec.structs.replace(problem, **changes) if changes else problem, None)
    if loop != NO_LOOP_OPTIONS:
        raise UsageError(f"{path} is no data-flow graph: rules and fixed instructions are for those")
    if csv_files.is_packing_csv(path):
        if target is not None or cost_model is not None or cycles is not None or stalls is not None:
            raise UsageError(f"{path} is a list of buffers to pack: it takes a capacity, but no target and no costs")
        return Opened(csv_files.read_problem(path, capacity), None)
    if target is None:
        raise UsageError(f"{path} is a compiled program: name a target for it (stowplan targets lists them)")

    from stowplan.hardware.costs import make_problem
    from stowplan.hardware.frontends.hlo import read_program
    from stowplan.hardware.targets import load_target

    machine = load_target(target)
    program = read_program(path)
    options: dict[str, Any] = {"capacity": capacity, "cost_model": cost_model, "stalls": stalls}
    options = {name: value for name, value in options.items() if value is not None}
    if cycles is not None:
        from stowplan.hardware.costs.cycles import read_cycle_table

        options["cycles"] = read_cycle_table(cycles[0], cycles[1], program)
    return Opened(make_problem(program, machine, **options), program)
