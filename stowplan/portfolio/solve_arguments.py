"""What :func:`stowplan.solve` is given: checked, and plans at hand and candidates chosen from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stowplan.arguments import flag, number, show, whole
from stowplan.errors import InputError, UsageError
from stowplan.portfolio.baseline import left_out
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate, Kind, check, describe_plan
from stowplan.portfolio.process_memory import check_limits_possible

FAMILIES = ("heuristic", "learned", "exact")

#: Seeds are below this: solvers keep them in 31 bits.
MAX_SEED = 2**31


def check_options(options: Options) -> Options:
    """Check options.

    Parameters
    ----------
    options
        As given by a caller: of any type.

    Returns
    -------
    Options
        The same with plain numbers and names in them.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    """
    candidates: Any = options.candidates
    if isinstance(candidates, str):
        candidates = candidates.split(",")
    elif not isinstance(candidates, Iterable):
        raise UsageError(f"found candidates {show(candidates)}, expected names, as a list or separated by commas")
    names = list(candidates)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"found candidate {show(name)}, expected a name")
    limit = None if options.memory_limit is None else whole("a memory limit of {} bytes", options.memory_limit, 1)
    if limit is not None:
        check_limits_possible()
    return Options(
        time_limit=number("a time limit of {} s", options.time_limit, 0.0, or_least=False),
        candidates=tuple(name.strip() for name in names),
        seed=whole("seed {}", options.seed, 0, MAX_SEED - 1),
        workers=whole("{} workers", options.workers, 1),
        deterministic=flag("deterministic {}", options.deterministic),
        gap=number("a gap of {}", options.gap, 0.0, 1.0),
        memory_limit=limit,
    )


def check_others(plans: Any, baseline: Any, on_progress: Any, cancel: Any) -> None:
    """Raise UsageError for an argument of :func:`stowplan.solve` beside the options that is of a wrong type."""
    if plans is not None and not (isinstance(plans, Mapping) and all(isinstance(name, str) for name in plans)):
        raise UsageError(f"found plans {show(plans)}, expected plans by name, a dictionary")
    if baseline is not None and not isinstance(baseline, str):
        raise UsageError(f"found baseline {show(baseline)}, expected a name")
    if on_progress is not None and not callable(on_progress):
        raise UsageError(f"found on_progress {show(on_progress)}, expected a function")
    if cancel is not None and not hasattr(cancel, "is_set"):
        raise UsageError(f"found cancel {show(cancel)}, expected a threading.Event")


def starts_of(
    kind: Kind, problem: Any, initial: Mapping[str, Any], plans: Mapping[str, Any], baseline: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The kind's initial plans and those at hand, the latter verified; and a warning where the baseline's is not valid."""
    starts = dict(initial)
    invalid = []
    taken = {*starts, *kind.baseline_sources}
    for name, plan in plans.items():
        if name in taken:
            raise UsageError(f"found a plan named {name!r}, which is the name of one of the package's own: give it another")
        if not isinstance(plan, kind.plan_type):
            raise UsageError(f"found {describe_plan(plan)} as the plan {name!r}, expected a plan of {kind.name}")
        found = check(kind, problem, plan)
        if not found.ok and name == baseline and plan.problem == problem.digest:
            invalid.append(left_out(name, f"its plan is not valid: {'; '.join(found.violations[:1])}"))
            continue
        if not found.ok:
            raise InputError(f"the plan {name!r} is not valid for this problem: {'; '.join(found.violations[:3])}")
        starts[name] = plan
    return starts, invalid


def chosen_candidates(every: list[Candidate], options: Options) -> list[Candidate]:
    """Those that the options name, by family or name; raises UsageError for a name that is none, and where none can run."""
    known = {*FAMILIES, *(candidate.name for candidate in every)}
    unknown = [name for name in options.candidates if name not in known]
    if unknown:
        raise UsageError(f"found candidate {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
    wanted = set(options.candidates)
    by_name = [candidate for candidate in every if candidate.name in wanted]
    by_family = [candidate for candidate in every if candidate.family in wanted and not candidate.by_name_only]
    chosen = [
        candidate for candidate in every if candidate in by_name or (candidate in by_family and not candidate.unavailable)
    ]
    # A family leaves out what cannot run, unless that is all there is.
    for candidate in by_name if chosen else by_family:
        if candidate.unavailable:
            raise UsageError(f"candidate {candidate.name!r} {candidate.unavailable}")
    return chosen
