"""Arguments and options that several commands share; those of inputs come from :mod:`stowplan.frontends.options`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from stowplan import arguments
from stowplan.errors import UsageError
from stowplan.frontends.options import OPTIONS, ReadOptions, spelt, spelt_all

if TYPE_CHECKING:
    from stowplan.portfolio.batch.records import Settings


def option(flags: str, metavar: str, text: str, **others: Any) -> Any:
    """An option: its flags, what stands for its value (nothing for a switch), and its help."""
    return typer.Option(*flags.split(), metavar=metavar or None, help=text, **others)


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
Targets = Annotated[
    list[str] | None,
    option(
        "--target",
        "NAME",
        "Target by name, or the path of a target file; again and again, one for each kind of input that needs one.",
    ),
]
TimeLimit = Annotated[float, option("--time-limit", "SECONDS", "Time limit, reading the input included.")]
Candidates = Annotated[str, option("--candidates", "NAMES", "Families or names of candidates, separated by commas.")]
Baseline = Annotated[
    str | None,
    option(
        "--baseline",
        "NAME",
        "Baseline that the result is no worse than, and is compared with: greedy, all_slow, xla, compiler ...; or prod.",
    ),
]
Prod = Annotated[
    bool,
    option("--prod", "", "The same as --baseline prod: XLA's own plan where --xla-plan has it, else the kind's own baseline."),
]
Gap = Annotated[float, option("--gap", "GAP", "Stop at this gap between plan and bound, e.g. 0.01.")]
Deterministic = Annotated[
    bool, option("--deterministic", "", "Limit work, not time: the same plan, byte for byte, on every run.")
]
WorkLimit = Annotated[
    float | None, option("--work-limit", "SECONDS", "Work of a deterministic run, in seconds of a machine at leisure.")
]


def size(text: str, least: int = 0) -> int:
    """Bytes, as an option says them (:func:`stowplan.arguments.size`)."""
    try:
        return arguments.size("{}", text, least)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


MemoryLimit = Annotated[
    int | None,
    option(
        "--memory-limit",
        "SIZE",
        "Memory for the process of each candidate, e.g. 2GB: one that takes more has failed, the others go on.",
        parser=size,
    ),
]
Certify = Annotated[
    bool, option("--certify", "", "Also prove the bound in a way that is checked without solvers (see --certificate of solve).")
]
Seed = Annotated[int, option("--seed", "N", "Seed of everything random.")]
Workers = Annotated[int, option("--workers", "N", "Processes side by side, at most.")]
Quiet = Annotated[bool, option("-q --quiet", "", "No progress on standard error.")]
XlaPlans = Annotated[
    list[Path] | None,
    option(
        "--xla-plans",
        "FOLDER",
        "For compiled programs, again and again: the modules after XLA's assignment, under the inputs' names; "
        "their plans are 'xla'.",
    ),
]
Report = Annotated[Path | None, option("--report", "FILE", "Write an HTML report here.")]
Picture = Annotated[
    Path | None, option("--png", "FILE", "Draw the plan here: .png, .svg or .pdf (.svg needs no extra, the others viz).")
]
#: As in :mod:`stowplan.portfolio.plan_cache`, which a command line without a cache does without.
MOST_BYTES = 1 << 28

CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        envvar="STOWPLAN_CACHE",
        # A cache that cannot be read costs a warning, not the result.
        readable=False,
        help="Keep results here, and take those that are here for the same problem, options and versions.",
    ),
]
CacheBytes = Annotated[
    int,
    option(
        "--cache-bytes", "SIZE", "Keep results of so many bytes at most, those used last.", parser=lambda text: size(text, 1)
    ),
]

DEFAULT_CANDIDATES = "heuristic,learned,exact"
DEFAULT_TIME_LIMIT = 30.0
DEFAULT_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Search:
    """The options of a search; a command with a parameter ``search`` of this type has them all."""

    time_limit: TimeLimit = DEFAULT_TIME_LIMIT
    candidates: Candidates = DEFAULT_CANDIDATES
    baseline: Baseline = None
    prod: Prod = False
    gap: Gap = 0.0
    deterministic: Deterministic = False
    work_limit: WorkLimit = None
    seed: Seed = 0
    workers: Workers = DEFAULT_WORKERS
    memory_limit: MemoryLimit = None
    certify: Certify = False

    def settings(self) -> dict[str, Any]:
        """They by name, as :func:`stowplan.solve` takes them; raises UsageError where two baselines are named."""
        if self.prod and self.baseline is not None:
            raise UsageError("found --prod and --baseline, which name two baselines: expected one of them")
        given = dataclasses.asdict(self)
        return given | {"baseline": "prod" if given.pop("prod") else self.baseline}


#: Options of inputs that all inputs of a suite may share.
SHARED = tuple(name for name, each in OPTIONS.items() if each.is_shared)


def with_input_options(names: Collection[str] = tuple(OPTIONS)) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of inputs, by their names; it gets them as one keyword argument, ``options``.

    Where it has a parameter ``search``, it has the options of :class:`Search`, too.
    """
    return functools.partial(_with_options, names=names)


def _with_options(command: Callable[..., None], names: Collection[str]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters
    searched = inspect.signature(Search, eval_str=True).parameters if "search" in own else {}
    every = [each for each in own.values() if each.name not in ("options", "search")] + [*searched.values()]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
    parameters += [_parameter(name) for name in OPTIONS if name in names]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = ReadOptions(**{name: values.pop(name) for name in names})
        if searched:
            values["search"] = Search(**{name: values.pop(name) for name in searched})
        command(**values, options=options)

    return with_parameters(run, parameters)


def with_parameters(command: Callable[..., None], parameters: Collection[inspect.Parameter]) -> Callable[..., None]:
    """A command with the parameters that its command line is made of, whatever its own signature is."""
    command.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__dict__.pop("__wrapped__", None)
    return command


_TYPES = get_type_hints(ReadOptions)


def _parameter(name: str) -> inspect.Parameter:
    """An option of inputs as a parameter of a command; what has several values is given again and again."""
    declared, kind = OPTIONS[name], _TYPES[name]
    parts = get_args(kind) or (kind,)
    if bool in parts:
        annotation, default = Annotated[bool, option(spelt(name), "", declared.help)], False
    else:
        one: Any = Path if declared.metavar == "FILE" else int if int in parts else str
        is_several = any(get_origin(each) is tuple for each in (kind, *parts))
        told = option(spelt(name), declared.metavar, declared.help, parser=size if declared.metavar == "SIZE" else None)
        annotation, default = Annotated[(list[one] if is_several else one) | None, told], None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def settings_of(options: ReadOptions, targets: Sequence[str] = (), **others: Any) -> Settings:
    """Settings of a suite: options that all its inputs share, its targets, and ``others`` as they are.

    Raises
    ------
    UsageError
        Options that no suite can share.
    """
    from stowplan.portfolio.batch.records import Settings

    given: dict[str, Any] = {name: str(each) if isinstance(each, Path) else each for name, each in options.given().items()}
    # One target is kept as text, as in records of earlier versions.
    target = given.pop("target", None) or (targets[0] if len(targets) == 1 else tuple(targets) or None)
    alone = [name for name in given if name not in SHARED]
    if alone:
        raise UsageError(f"{spelt_all(alone)}: each input needs files of its own for this, so that a suite cannot share it")
    return Settings(target=target, **given, **others)
