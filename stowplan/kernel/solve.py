"""One verb for all kinds: :func:`solve`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from stowplan.deadline import Deadline
from stowplan.document import PlanDocument, ProblemDocument
from stowplan.kernel.assumptions import assumptions
from stowplan.kernel.call import Call, build_call, check_others
from stowplan.kernel.certification import certified, seconds_for
from stowplan.kernel.context import FAMILIES, Options
from stowplan.kernel.kind import kind_of
from stowplan.kernel.outcome import result_of
from stowplan.kernel.plan_cache import PlanCache
from stowplan.kernel.run import Run
from stowplan.kernel.state import RunState
from stowplan.result import Progress, Result
from stowplan.stop import Criterion

PlanT = TypeVar("PlanT", bound=PlanDocument)

#: A deterministic run ends at so many times its time limit at the latest.
CEILING = 2.0


def solve(
    problem: ProblemDocument[PlanT],
    *,
    time_limit: float = 30.0,
    candidates: str | Iterable[str] = FAMILIES,
    seed: int = 0,
    workers: int = 2,
    deterministic: bool = False,
    work_limit: float | None = None,
    gap: float = 0.0,
    memory_limit: int | None = None,
    plans: Mapping[str, Any] | None = None,
    hint: Any = None,
    keep_close: Any = None,
    baseline: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: Criterion | None = None,
    cancel: threading.Event | None = None,
    cache: str | os.PathLike[str] | PlanCache | None = None,
    certify: bool = False,
) -> Result[PlanT]:
    """Best verified plan for a problem within a time limit, with a proven bound.

    Parameters
    ----------
    problem
        A problem of any kind: from :func:`stowplan.read`, or built by hand.
    time_limit
        Seconds, met to within 0.5 s + 5 %. A deterministic run does work that usually takes less, and ends at twice the limit
        in any case, with what it had done whole by then.
    candidates
        Families (``heuristic``, ``learned``, ``exact``) or names of candidates, as a list or separated by commas. The kind's
        simplest plans are always there.
    seed
        Seed of everything random.
    workers
        Processes that run side by side, at most.
    deterministic
        Same input, options and versions give the same plan, byte for byte, whatever the load: work is limited instead of time.
    work_limit
        Work of a deterministic run, whatever its time limit: about as much as a machine at leisure does in so many seconds. By
        default the time limit. ``provenance.options["work_limit"]`` says how much work has made the plan: with as
        much, and enough time, it is made again.
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
    stop
        When to stop before the time limit: any function of a :class:`stowplan.Progress` that says whether to, such as
        those of :mod:`stowplan.stop`. It is asked several times a second. A baseline that was named is still waited for. Not
        with ``deterministic``: what is known at a moment is a matter of load.
    cancel
        Setting this event from another thread returns the best plan so far; so does Ctrl-C.
    cache
        Folder of a plan cache: a result that is there for the same problem, options and versions, and is proven or had at least
        this time limit, is returned, once its plan is verified; else what is found is kept there. None keeps nothing.

    certify
        Make a certificate of the bound, ``Result.certificate``: a proof that is checked without solvers and models
        (docs/reference/certificates.md). A twentieth of the time limit is for this, and up to a fifth where solving ends early.

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
    options = Options(
        time_limit=time_limit,
        candidates=candidates,  # type: ignore[arg-type]  # names in any form; what is kept is a tuple
        seed=seed,
        workers=workers,
        deterministic=deterministic,
        work_limit=work_limit,
        gap=gap,
        memory_limit=memory_limit,
        baseline=baseline,
        certify=certify,
    )
    check_others(options, plans, on_progress, stop, cancel)
    kind = kind_of(problem)
    if options.certify and kind.certificate:
        # Loaded within the limit.
        kind.certificate()
    # The kind's modules may just have been imported; that is part of the time.
    deadline = Deadline(_run_seconds(options) - (time.monotonic() - began), cancel)
    call = build_call(kind, problem, options, plans=plans or {}, hint=hint, keep_close=keep_close)
    plan_cache = PlanCache.of(cache)
    if plan_cache is None:
        result = run_call(call, deadline, on_progress, stop)
    else:
        result = plan_cache.result_of(call, deadline, lambda: run_call(call, deadline, on_progress, stop), on_progress)
    return msgspec.structs.replace(result, problem=problem, assumptions=assumptions(kind, problem))


def _run_seconds(options: Options) -> float:
    """Seconds that a run may take; the rest of the limit is for its certificate."""
    if options.deterministic:
        return CEILING * options.time_limit
    return options.time_limit - (min(seconds_for(options.time_limit), options.time_limit / 2) if options.certify else 0.0)


def run_call(
    call: Call, deadline: Deadline, on_progress: Callable[[Progress], None] | None = None, stop: Criterion | None = None
) -> Result:
    """One run of a call, and its result; with an earlier plan to keep close to, the search for a closer one after it."""
    keeper, options = call.keeper, call.options
    state = RunState(
        call.kind,
        call.problem,
        options,
        deadline,
        on_progress,
        baseline=call.baseline,
        on_plan=None if keeper is None else keeper.take,
        hints=[*call.hints],
        warnings=[*call.warnings],
    )
    run = Run(state, call.candidates, *((options, deadline) if keeper is None else keeper.limits(options, deadline)), stop)
    stop_reason = run.run(call.starts)
    if keeper is not None and keeper.finish(state):
        stop_reason = "cancelled"
    result = result_of(run, call, stop_reason)
    if options.certify:
        result = certified(result, call.problem, state)
    return result if keeper is None else keeper.described(result)
