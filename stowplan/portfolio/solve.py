"""One verb for all kinds: :func:`solve`."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache as cached
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan.arguments import flag, number, show, whole
from stowplan.deadline import Deadline
from stowplan.errors import InputError, UsageError
from stowplan.log import LOGGER
from stowplan.models.hint import Hint
from stowplan.notes import bounded
from stowplan.portfolio.baseline import left_out, resolve, warn_where_missing, with_maker
from stowplan.portfolio.context import Options
from stowplan.portfolio.hints import HINT, hinted_plan, hinted_values
from stowplan.portfolio.kind import Candidate, Kind, check, describe_plan, kind_of
from stowplan.portfolio.plan_cache import PlanCache, depends_on_limit, key_of
from stowplan.portfolio.process_memory import check_limits_possible
from stowplan.portfolio.run import Run
from stowplan.portfolio.run_state import Progress, RunState
from stowplan.result import Provenance, Result, Status, StopReason

if TYPE_CHECKING:
    from stowplan.portfolio.keep_close.after_run import Closer

FAMILIES = ("heuristic", "learned", "exact")

#: Seeds are below this: solvers keep them in 31 bits.
MAX_SEED = 2**31

#: A deterministic run does its work however long it takes, up to this many times the limit plus so many seconds: a net for
#: candidates that hang, wide enough for compiling everything on a busy machine.
NET = 10, 240.0

_VERSIONED = ("stowplan", "ortools", "highspy", "numpy", "numba")
_VERSIONED_WITH_POLICY = (*_VERSIONED, "torch")


def solve(
    problem: Any,
    *,
    time_limit: float = 30.0,
    candidates: str | Iterable[str] = FAMILIES,
    seed: int = 0,
    workers: int = 2,
    deterministic: bool = False,
    gap: float = 0.0,
    memory_limit: int | None = None,
    plans: Mapping[str, Any] | None = None,
    hint: Any = None,
    keep_close: Any = None,
    baseline: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    cache: str | os.PathLike[str] | PlanCache | None = None,
) -> Result:
    """Best verified plan for a problem within a time limit, with a proven bound.

    Parameters
    ----------
    problem
        A problem of any kind: from :func:`stowplan.read`, or built by hand.
    time_limit
        Seconds, met to within 0.5 s + 5 %. A deterministic run does work that usually takes less; on a machine under load it
        may take more.
    candidates
        Families (``heuristic``, ``learned``, ``exact``) or names of candidates, as a list or separated by commas. The kind's
        simplest plans are always there.
    seed
        Seed of everything random.
    workers
        Processes that run side by side, at most.
    deterministic
        Same input, options and versions give the same plan, byte for byte, whatever the load: work is limited instead of time.
    gap
        Stop once (objective - bound) / objective is at most this.
    memory_limit
        Bytes that the process of each candidate may hold, with what it has started and what it imports. One that holds more has
        failed, and says so; the others go on. Small problems are solved in threads of this process, which cannot be held to it.
        None sets no limit.
    plans
        Plans at hand, by name (another compiler's, say): verified, what candidates start from, and listed as baselines.
    hint
        What guides the search: a :class:`stowplan.models.hint.Hint` for this problem, or a plan of its kind, which is treated
        like one of ``plans``, under the name ``hint``. It may be bad: that costs a little time, nothing else.
    keep_close
        An earlier plan that the result shall change as little as can be: a plan of this problem, or a
        :class:`stowplan.KeepClose`, which also takes plans of an earlier version and says what little change may cost. It takes
        part under the name ``earlier``, and where it is valid the result is never worse. ``details["keep_close"]`` says how
        many decisions changed, as ``stowplan compare`` counts them. A quarter of the time limit is for this.
    baseline
        Name of a baseline that the result is no worse than: one of ``plans``, one of the kind's, or ``prod``, the production
        baseline (``xla`` where it is one of ``plans``, else the kind's own). Its plan is made whatever ``candidates`` says, and
        is returned where nothing better was found; where it is not valid, a warning says so. By default ``speedup`` is over the
        kind's own, which is not waited for.
    on_progress
        Called from this thread whenever incumbent or bound improve.
    cancel
        Setting this event from another thread returns the best plan so far; so does Ctrl-C.
    cache
        Folder of a plan cache: a result that is there for the same problem, options and versions, and is proven or had at least
        this time limit, is returned, once its plan is verified; else what is found is kept there. None keeps nothing.

    Returns
    -------
    Result
        The best plan that passed verification, None where there is none; objective and bound in the kind's unit; why the run
        ended, how it went, and what every candidate found. It says ``infeasible`` only where that is proven.

    Raises
    ------
    UsageError
        Unknown candidate names, a problem of no known kind, an argument of a wrong type or out of range.
    InputError
        A plan at hand that is not valid for the problem, or a hint that is not for it; an earlier plan that is not valid for
        the problem that it is of.
    """
    began = time.monotonic()
    options = check_options(
        Options(
            time_limit=time_limit,
            candidates=candidates,  # type: ignore[arg-type]
            seed=seed,
            workers=workers,
            deterministic=deterministic,
            gap=gap,
            memory_limit=memory_limit,
        )
    )
    _check_the_rest(plans, baseline, on_progress, cancel)
    kind = kind_of(problem)
    # The kind's modules may just have been imported; that is part of the time.
    limit = NET[0] * options.time_limit + NET[1] if options.deterministic else options.time_limit
    deadline = Deadline(limit - (time.monotonic() - began), cancel)
    every = kind.candidates(problem, options)
    chosen = _chosen(every, options)
    hinted = hinted_plan(kind, problem, hint)
    if hinted is not None and HINT in (plans or {}):
        raise UsageError(f"found a plan named {HINT!r}, which is the name of the hint's: give it another")
    closer = None if keep_close is None else _closer(kind, problem, keep_close, plans or {})
    at_hand = {**(plans or {}), **({} if hinted is None else {HINT: hinted})}
    initial = kind.initial(problem)
    kept_close = {} if closer is None else closer.starts
    named = resolve(kind, baseline, initial, {**at_hand, **kept_close})
    starts, invalid = _starts(kind, problem, initial, at_hand, named)
    starts |= kept_close
    hints = hinted_values(kind, problem, hint, starts.get(HINT))
    baselines = dict.fromkeys((*starts, *kind.baseline_sources, *([] if named is None else [named])))
    chosen = with_maker(kind, problem, named, starts, chosen)

    def compute() -> Result:
        state = RunState(kind, problem, options, deadline, on_progress, baseline=named, hints=hints, warnings=[*invalid])
        if closer is not None:
            state.options, state.deadline = closer.run_options(options), closer.run_deadline(options, deadline)
            state.on_plan = closer.take
        run = Run(state, chosen)
        stop_reason = run.run(starts)
        if not invalid:
            warn_where_missing(state, run.reports)
        if closer is not None:
            state.options = options
            if closer.finish(state, options, deadline) or deadline.was_cancelled:
                stop_reason = "cancelled"
        result = _result(run, stop_reason, tuple(baselines), _checkpoint(run, chosen), hint)
        return result if closer is None else _kept_close(result, closer, deadline)

    kept = PlanCache.of(cache)
    if kept is None:
        return msgspec.structs.replace(compute(), problem=problem)
    key = key_of(
        kind,
        problem,
        options,
        candidates=chosen,
        plans=plans or {},
        hint=hint,
        keep_close=None if closer is None else closer.given,
        baseline=named,
        versions=_versions(_VERSIONED_WITH_POLICY),
    )
    result = _through_cache(kept, key, kind, problem, options, deadline, on_progress, compute)
    return msgspec.structs.replace(result, problem=problem)


def _closer(kind: Kind, problem: Any, keep_close: Any, plans: Mapping[str, Any]) -> Closer:
    # Not at the top: most runs have no earlier plan to keep close to.
    from stowplan.portfolio.keep_close.after_run import Closer
    from stowplan.portfolio.keep_close.given import EARLIER, given

    closer = Closer(kind, problem, given(keep_close, kind))
    if EARLIER in plans:
        raise UsageError(f"found a plan named {EARLIER!r}, which is the name of the one to keep close to: give it another")
    return closer


def _kept_close(result: Result, closer: Closer, deadline: Deadline) -> Result:
    """The result with what is to be said of the earlier plan."""
    return msgspec.structs.replace(
        result,
        seconds=round(deadline.elapsed, 3),
        details=result.details | closer.details,
        highlights=(*result.highlights, *(["changed"] if closer.details else [])),
        warnings=(*result.warnings, *closer.notes),
    )


def _through_cache(
    cache: PlanCache,
    key: str,
    kind: Kind,
    problem: Any,
    options: Options,
    deadline: Deadline,
    on_progress: Callable[[Progress], None] | None,
    compute: Callable[[], Result],
) -> Result:
    """The result that is kept for a key, else a new one, which is kept."""
    limit = options.time_limit if cache.time_limit is None else cache.time_limit
    found = cache.get(kind, problem, key, limit)
    if found is None:
        with cache.turn(key, deadline) as waited:
            found = cache.get(kind, problem, key, limit) if waited else None
            if found is None:
                result = compute()
                # Whoever has waited for another has not had its whole limit.
                if not (waited and depends_on_limit(result)):
                    cache.put(key, result, limit)
    if found is not None:
        LOGGER.info("found in the plan cache: %s, from a run of %.3f s", found.status, found.seconds)
        result = msgspec.structs.replace(
            found,
            seconds=round(deadline.elapsed, 3),
            details=found.details | {"cached": {"seconds": found.seconds}},
        )
        if on_progress is not None:
            on_progress(Progress(result.seconds, result.objective, result.bound, result.provenance.candidate))
    return msgspec.structs.replace(result, warnings=(*result.warnings, *cache.notes))


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


def _check_the_rest(plans: Any, baseline: Any, on_progress: Any, cancel: Any) -> None:
    if plans is not None and not (isinstance(plans, Mapping) and all(isinstance(name, str) for name in plans)):
        raise UsageError(f"found plans {show(plans)}, expected plans by name, a dictionary")
    if baseline is not None and not isinstance(baseline, str):
        raise UsageError(f"found baseline {show(baseline)}, expected a name")
    if on_progress is not None and not callable(on_progress):
        raise UsageError(f"found on_progress {show(on_progress)}, expected a function")
    if cancel is not None and not hasattr(cancel, "is_set"):
        raise UsageError(f"found cancel {show(cancel)}, expected a threading.Event")


def _starts(
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


def _chosen(every: list[Candidate], options: Options) -> list[Candidate]:
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


def _checkpoint(run: Run, chosen: list[Candidate]) -> str | None:
    """Hash of the policy that took part: others may have gone on from its plans."""
    ran = {report.name for report in run.reports if report.outcome != "skipped"}
    return next((candidate.checkpoint for candidate in chosen if candidate.checkpoint and candidate.name in ran), None)


def _result(run: Run, stop_reason: StopReason, baselines: tuple[str, ...], checkpoint: str | None, hint: Any) -> Result:
    known = run.state
    baseline = known.baseline or known.kind.baseline
    status: Status
    if known.infeasible:
        status = "infeasible"
    elif known.objective is None:
        status = "no_plan"
    else:
        status = "optimal" if known.bound is not None and known.objective <= known.bound else "feasible"
    if known.options.deterministic and run.cut_short:
        known.warnings.append("a deterministic run was ended before its work was done: another run may differ")
    identity = known.kind.identity(known.problem)
    return Result(
        kind=known.kind.name,
        plan=known.plan,
        objective=known.objective,
        bound=known.bound,
        status=status,
        stop_reason=stop_reason,
        verified=known.objective is not None,
        baseline_name=baseline,
        baseline=known.sources.get(baseline),
        baselines={name: known.sources[name] for name in baselines if name in known.sources},
        history=tuple(known.history),
        candidates=tuple(run.reports),
        provenance=Provenance(
            candidate="" if known.best is None else known.best.source,
            seed=known.options.seed,
            deterministic=known.options.deterministic,
            versions=dict(_versions(_VERSIONED if checkpoint is None else _VERSIONED_WITH_POLICY)),
            program=identity["program"],
            target=identity["target"],
            cost_model=identity["cost_model"],
            problem_digest=identity["digest"],
            options={
                "time_limit": known.options.time_limit,
                "candidates": list(known.options.candidates),
                "workers": known.options.workers,
                "gap": known.options.gap,
            }
            | ({} if known.baseline is None else {"baseline": known.baseline})
            | ({} if known.options.memory_limit is None else {"memory_limit": known.options.memory_limit})
            | ({} if hint is None else {"hint": hint.source if isinstance(hint, Hint) else "plan"}),
            checkpoint=checkpoint,
            guides=(*known.guides,),
            family="" if known.best is None else known.families.get(known.best.source, "given"),
        ),
        seconds=round(known.deadline.elapsed, 3),
        unit=known.kind.unit,
        highlights=known.kind.highlights,
        # What every heuristic and model reached, not only the best.
        details=(known.why if known.infeasible else {})
        | known.kind.facts(known.problem, known.plan)
        | ({} if known.infeasible else known.kind.proven(known.problem, known.objective, known.bound))
        | {"sources": dict(known.sources)},
        warnings=(*bounded(known.kind.notes(known.problem)), *known.warnings),
    )


@cached
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
