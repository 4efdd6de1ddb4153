"""One verb for all kinds: :func:`solve`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan.deadline import Deadline
from stowplan.errors import UsageError
from stowplan.log import LOGGER
from stowplan.portfolio.arguments import (
    FAMILIES,
    HINT,
    check_options,
    check_others,
    chosen_candidates,
    hinted_plan,
    hinted_values,
    resolve,
    starts_of,
    with_maker,
)
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Kind, kind_of
from stowplan.portfolio.plan_cache import PlanCache, depends_on_limit, key_of
from stowplan.portfolio.run.run import Run, result_of, versions, warn_where_missing
from stowplan.portfolio.run.state import Progress, RunState
from stowplan.result import Result

if TYPE_CHECKING:
    from stowplan.portfolio.keep_close.after_run import Closer

#: A deterministic run does its work however long it takes, up to this many times the limit plus so many seconds: a net for
#: candidates that hang, wide enough for compiling everything on a busy machine.
NET = 10, 240.0


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
    check_others(plans, baseline, on_progress, cancel)
    kind = kind_of(problem)
    # The kind's modules may just have been imported; that is part of the time.
    limit = NET[0] * options.time_limit + NET[1] if options.deterministic else options.time_limit
    deadline = Deadline(limit - (time.monotonic() - began), cancel)
    every = kind.candidates(problem, options)
    chosen = chosen_candidates(every, options)
    hinted = hinted_plan(kind, problem, hint)
    if hinted is not None and HINT in (plans or {}):
        raise UsageError(f"found a plan named {HINT!r}, which is the name of the hint's: give it another")
    closer = None if keep_close is None else _closer(kind, problem, keep_close, plans or {})
    at_hand = {**(plans or {}), **({} if hinted is None else {HINT: hinted})}
    initial = kind.initial(problem)
    kept_close = {} if closer is None else closer.starts
    named = resolve(kind, baseline, initial, {**at_hand, **kept_close})
    starts, invalid = starts_of(kind, problem, initial, at_hand, named)
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
        result = result_of(run, stop_reason, chosen=chosen, baselines=baselines, hint=hint)
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
        versions=versions(with_policy=True),
    )
    result = _through_cache(kept, key, kind, problem, options, deadline, on_progress, compute)
    return msgspec.structs.replace(result, problem=problem)


def _closer(kind: Kind, problem: Any, keep_close: Any, plans: Mapping[str, Any]) -> Closer:
    # Not at the top: most runs have no earlier plan to keep close to.
    from stowplan.portfolio.keep_close.after_run import Closer
    from stowplan.portfolio.keep_close.closeness import EARLIER, given

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
