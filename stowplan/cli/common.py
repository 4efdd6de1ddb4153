"""Arguments and options that several commands share."""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from stowplan import files
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions

Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="Compiled program (scheduled HLO text), network (layer file, ONNX), data-flow graph (JSON, DOT), buffers to pack "
        "(CSV), graph of operators (JSON), TensorFlow Lite model, program of torch.export (.pt2), HLO before optimisation, or "
        "problem file; plain or gzip. Most can be planned for several targets.",
    ),
]
Suites = Annotated[
    list[Path],
    typer.Argument(metavar="SUITE", help="Folders, files or quoted glob patterns of inputs, as 'solve' takes."),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file, as 'stowplan solve -o' writes it.")]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="NAME", help="Target by name, or the path of a target file; 'stowplan targets' lists them."
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Target by name, or the path of a target file; again and again, one for each kind of input that needs one.",
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        metavar="BYTES",
        help="Fast memory (the fastest tier), in place of the target's; for packing, the bytes to fit into.",
    ),
]
CostModel = Annotated[
    str | None,
    typer.Option("--cost-model", metavar="NAME", help="Cost model, in place of the target's: roofline, table or signatures."),
]
StallMode = Annotated[
    str | None, typer.Option("--stalls", metavar="MODE", help="May the program wait for copies: allowed or forbidden.")
]
Donation = Annotated[
    str | None,
    typer.Option(
        "--donation",
        metavar="MODE",
        help="A donated parameter and the output in its storage are two tensors (free, the default) or "
        "one (tied), as XLA has them.",
    ),
]
Evictions = Annotated[
    str | None,
    typer.Option(
        "--evictions",
        metavar="MODE",
        help="A copy out keeps its place for whole_steps (the default) or leaves it between_steps, as XLA's do.",
    ),
]
Prefetches = Annotated[
    str | None,
    typer.Option(
        "--prefetches",
        metavar="MODE",
        help="Copies in are whole (the default), or may be sliced, as XLA's are.",
    ),
]
Cycles = Annotated[
    list[Path] | None,
    typer.Option(
        "--cycles",
        metavar="FILE",
        help="Again and again. For the table cost model: the module compiled without, then with a fast-memory plan, cycles "
        "in both. For signatures: latency tables, or any number of such modules.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="Type: int8 (the default) or fp16; on memory with banks bf16, fp16 or int8, in place of the file's own.",
    ),
]
Granularity = Annotated[
    str | None,
    typer.Option(
        "--granularity",
        metavar="NAME",
        help="For ONNX models: layer (an operation takes up what follows it), fine (each stands alone), or auto (the default).",
    ),
]
AddressSpaces = Annotated[bool, typer.Option("--address-spaces", help="Every tensor gets an offset in its tier, too.")]
LoopRules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="NAME=VALUE",
        help="Again and again: max_delay=1, pass_through=yes, starts=source, siblings=none, "
        "inputs=copies, fuse=yes, fan_out=4, strict=yes, memory=asynchronous, balance=yes (docs/reference/loop-bodies.md).",
    ),
]
Fixed = Annotated[
    Path | None,
    typer.Option("--fixed", metavar="FILE", help="JSON list of instructions with their tile, time or slot."),
]
OpTableFile = Annotated[
    Path | None,
    typer.Option("--op-table", metavar="FILE", help="TOML file with meaning, latency, class and tiles of ops."),
]
TimeLimit = Annotated[float, typer.Option("--time-limit", metavar="SECONDS", help="Time limit, reading the input included.")]
Candidates = Annotated[
    str, typer.Option("--candidates", metavar="NAMES", help="Families or names of candidates, separated by commas.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Baseline that the result is no worse than, and is compared with: greedy, all_slow, xla, compiler ...; or prod.",
    ),
]
Prod = Annotated[
    bool,
    typer.Option(
        "--prod",
        help="The same as --baseline prod: XLA's own plan where --xla-plan has it, else the kind's own baseline.",
    ),
]
Gap = Annotated[float, typer.Option("--gap", metavar="GAP", help="Stop at this gap between plan and bound, e.g. 0.01.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Limit work, not time: the same plan, byte for byte, on every run.")
]


def size(text: str) -> int:
    """Bytes, as an option says them: ``2 GB``, ``512MiB``, ``1000000``."""
    from stowplan.hardware.targets.toml_files import Bytes

    try:
        return int(text) if text.isdecimal() else int(Bytes.parse(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        parser=size,
        help="Memory for the process of each candidate, e.g. 2GB: one that takes more has failed, the others go on.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
Workers = Annotated[int, typer.Option("--workers", metavar="N", help="Processes side by side, at most.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress on standard error.")]

#: Options that commands for suites leave out: each input needs files of its own for these, or a target that fits it.
NOT_SHARED = ("target", "cycles", "fixed")

DEFAULT_CANDIDATES = "heuristic,learned,exact"
DEFAULT_TIME_LIMIT = 30.0
DEFAULT_WORKERS = 2


#: Parameters of :func:`with_input_options`: the options of :class:`stowplan.frontends.options.ReadOptions`, by their names.
_INPUT_OPTIONS: dict[str, tuple[object, object]] = {
    "target": (TargetOption, None),
    "capacity": (Capacity, None),
    "cost_model": (CostModel, None),
    "stalls": (StallMode, None),
    "donation": (Donation, None),
    "evictions": (Evictions, None),
    "prefetches": (Prefetches, None),
    "cycles": (Cycles, None),
    "precision": (Precision, None),
    "granularity": (Granularity, None),
    "address_spaces": (AddressSpaces, False),
    "rules": (LoopRules, None),
    "fixed": (Fixed, None),
    "op_table": (OpTableFile, None),
}


def with_input_options(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of all inputs, or most; it gets them as one keyword argument, ``options``."""
    return functools.partial(_with_options, names=tuple(name for name in _INPUT_OPTIONS if name not in without))


def _with_options(command: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in ((name, _INPUT_OPTIONS[name]) for name in names)
    ]
    parameters = [
        *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values() if each.name != "options"),
        *shared,
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in names}
        if "rules" in given:
            given |= {"rules": tuple(given["rules"] or ())}
        if "cycles" in given:
            given |= {"cycles": tuple(given["cycles"]) if given["cycles"] else None}
        command(**values, options=ReadOptions(**given))

    # What the command line is made of; wraps has copied the command's own.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__
    return run


XlaPlans = Annotated[
    list[Path] | None,
    typer.Option(
        "--xla-plans",
        metavar="FOLDER",
        help="For compiled programs, again and again: the modules after XLA's assignment, under the inputs' names; "
        "their plans are 'xla'.",
    ),
]


def named_baseline(baseline: str | None, prod: bool) -> str | None:
    """The baseline of ``--baseline`` or ``--prod``; raises UsageError where both are given."""
    if prod and baseline is not None:
        raise UsageError("found --prod and --baseline, which name two baselines: expected one of them")
    return "prod" if prod else baseline


def files_of(options: ReadOptions) -> tuple[Path, ...]:
    """The files that options name, which no output may be written over; a target may be one."""
    return tuple(
        Path(each) for each in (options.target, options.fixed, options.op_table, *(options.cycles or ())) if each is not None
    )


def one_or_all(targets: list[str] | None) -> str | tuple[str, ...] | None:
    """Targets of a suite as its settings have them: one is kept as text, as in records of earlier versions."""
    return targets[0] if targets and len(targets) == 1 else tuple(targets or ()) or None


def target_file(target: str | None) -> Path | None:
    """The path that a target is, if any: a file that is read."""
    return None if target is None else Path(target)


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Find out now, not after the time limit, that a file cannot be written, or would be written over another or an input.

    Raises
    ------
    UsageError
        Naming the file and what stands in the way.
    """
    read = [path for path in inputs if path is not None and os.path.exists(path)]
    written: list[Path] = []
    for path in outputs:
        if path is None:
            continue
        _check_writable(path)
        if any(_is_same_file(path, other) for other in read):
            raise UsageError(f"{path}: is an input of this command, expected another file to write to")
        if any(_is_same_file(path, other) for other in written):
            raise UsageError(f"{path}: is to be written twice by this command, expected a file for each output")
        if _is_standard_output(path):
            raise UsageError(f"{path}: is where standard output goes, expected another file to write to")
        written.append(path)


def check_folder(path: Path) -> None:
    """Find out now that a folder, there or to be made, could not be written into; raises UsageError saying why."""
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UsageError(f"{path}: cannot write into it: {at} is no folder")
    if not os.access(at, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write into it: no permission to write in {at}")


def _check_writable(path: Path) -> None:
    number = files.own_descriptor(path)
    if number is not None:
        try:
            os.fstat(number)
        except OSError as error:
            raise UsageError(f"{path}: cannot write: {error.strerror}") from error
        return
    # Not Path's own questions: those raise OSError for names that are too long.
    target = os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path)
    if os.path.islink(target):
        raise UsageError(f"{path}: cannot write: {os.strerror(errno.ELOOP)}")
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: cannot write: there is no folder {folder}")
    if os.path.isdir(target):
        raise UsageError(f"{path}: cannot write: it is a folder, expected the name of a file")
    if os.path.exists(target) and not os.path.isfile(target):
        # A device or pipe is written through.
        if not os.access(target, os.W_OK):
            raise UsageError(f"{path}: cannot write: no permission to write to it")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write: no permission to write in {folder}")


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, there or not; what goes to a device such as /dev/null does not collide."""
    try:
        return one.samefile(other) and not one.is_char_device()
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _is_standard_output(path: Path) -> bool:
    """Whether a regular file that would be replaced is the one that standard output is redirected to."""
    try:
        return os.path.isfile(path) and files.own_descriptor(path) is None and os.path.samestat(os.fstat(1), path.stat())
    except OSError:
        return False
