"""The function :func:`solve`, which solves problems of all kinds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from stowplan.compiled.library import missing_code
from stowplan.deadline import Deadline
from stowplan.document import PlanDocument, ProblemDocument
from stowplan.kernel.assumptions import assumptions
from stowplan.kernel.call import Call, build_call, check_other_arguments
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

#: A deterministic run is ended at this multiple of its time limit even if its work is not complete. An idle machine does the
#: work within the limit, and a busy one may take longer.
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
    """Finds the best plan for a problem within a time limit, together with a proven bound, and verifies it.

    Parameters
    ----------
    problem
        A problem of any kind, from :func:`stowplan.read` or built in Python.
    time_limit
        Time limit in seconds; the call returns at most 0.5 s + 5 % later. A deterministic run does a fixed amount of work
        instead, which usually takes less time. Its work is divided into stages. It ends at twice the time limit in any case,
        and then returns the plan of the last stage that was completed.
    candidates
        The candidates to run, that is, the methods that look for plans and bounds: families (``heuristic``, ``learned``,
        ``exact``) or names, as a list or separated by commas. The simplest plans of the kind of problem are always included.
    seed
        Seed of all random numbers.
    workers
        Maximum number of worker processes.
    deterministic
        Limit work instead of time, so that the same input, options and versions give the same plan, byte for byte, whatever the
        load of the machine.
    work_limit
        Work of a deterministic run, in seconds of an idle machine; by default the time limit.
        ``provenance.options["work_limit"]`` says how much work led to the plan: a run with the same work limit, and enough
        time, finds the same plan.
    gap
        The run stops when (objective - bound) / objective is at most this.
    memory_limit
        Memory limit in bytes for the process of each candidate, including its child processes and imported modules. A candidate
        that uses more is killed and reported as failed, and the others continue. Small problems are solved in threads of this
        process, to which the limit does not apply. None sets no limit.
    plans
        Existing plans by name, for example from another compiler. They are verified, used as starting points, and listed as
        baselines.
    hint
        Guides the candidates: a :class:`stowplan.models.hint.Hint` for this problem, or a plan of its kind, which is treated
        like one of ``plans`` under the name ``hint``. A bad hint costs some time but does not make the result wrong.
    keep_close
        An earlier plan from which the result should differ as little as possible: a plan of this problem, or a
        :class:`stowplan.KeepClose`, which also accepts plans of an earlier version of the problem and says how much worse the
        objective may become. The earlier plan is also one of the plans to start from, under the name ``earlier``; if it is
        valid, the result is never worse. ``details["keep_close"]`` counts the changed decisions as ``stowplan compare`` does. A
        quarter of the time limit is set aside for this.
    baseline
        Name of a baseline. The result is never worse than the plan of this baseline. It is the name of one of ``plans``, of a
        baseline of the kind of problem, or ``prod``. ``prod`` stands for the compiler: it is ``xla`` if ``plans`` has that
        name, otherwise the default baseline of the kind. The baseline's plan is made whatever ``candidates`` says, and is
        returned if nothing better is found; if it is not valid, a warning says so. Without this argument, ``speedup`` in the
        result refers to the kind's default baseline, and the run does not wait for it.
    on_progress
        Called from this thread whenever the best plan or the bound improves.
    stop
        Criterion for stopping before the time limit: a function of a :class:`stowplan.Progress` that returns whether to stop,
        such as those of :mod:`stowplan.stop`. It is called several times a second. A baseline that was named is still waited
        for. It cannot be combined with ``deterministic``, because the progress at a given moment depends on the load of the
        machine.
    cancel
        Setting this event from another thread ends the run with the best plan so far. Ctrl-C does the same.
    cache
        Folder of a plan cache, in which results are stored. A stored result for the same problem, options and versions is
        verified and returned if its run had at least this time limit, or if more time could not change it. The second is the
        case for a result that is proven or reached ``gap``, and for a result of a deterministic run. Otherwise the problem is
        solved, and the result is stored. None uses no cache.
    certify
        Make a certificate of the bound, ``Result.certificate``: a proof that can be checked without solvers and models
        (docs/reference/certificates.md). A twentieth of the time limit is set aside for this, and up to a fifth is used if the
        search ends early.

    Returns
    -------
    Result
        The best plan that passed verification, or None if there is none; its objective and the bound, in the unit of the kind,
        such as bytes or ps; why the run ended; and what every candidate found. The status is ``infeasible`` only if it is
        proven that no valid plan exists.

    Raises
    ------
    UsageError
        The problem is of no known kind; a candidate's or a baseline's name is unknown; a candidate that is named cannot run
        here; an argument has a wrong type or is out of range; ``stop`` is combined with ``deterministic``; a plan is of another
        kind or has a reserved name; or an earlier plan cannot be matched to this problem.
    InputError
        A given plan is not valid for the problem. A hint is damaged or for another problem. An earlier plan is not valid for
        the problem that it belongs to.
    Exception
        Any error that ``on_progress`` or ``stop`` raises. It ends the run.
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
    check_other_arguments(options, plans, on_progress, stop, cancel)
    kind = kind_of(problem)
    if options.certify and kind.certificate:
        # The module that makes certificates is imported now, so that the time of its import counts towards the limit.
        kind.certificate()
    # Importing the modules of the kind has taken some of the time.
    deadline = Deadline(_run_seconds(options) - (time.monotonic() - began), cancel)
    call = build_call(kind, problem, options, plans=plans or {}, hint=hint, keep_close=keep_close)
    plan_cache = PlanCache.of(cache)
    if plan_cache is None:
        result = run_call(call, deadline, on_progress, stop)
    else:
        result = plan_cache.result_of(call, deadline, lambda: run_call(call, deadline, on_progress, stop), on_progress)
    return msgspec.structs.replace(result, problem=problem, assumptions=assumptions(kind, problem, result))


def _run_seconds(options: Options) -> float:
    """Seconds that the search may take. The rest of the time limit is set aside for the certificate, if there is to be one."""
    if options.deterministic:
        return CEILING * options.time_limit
    return options.time_limit - (min(seconds_for(options.time_limit), options.time_limit / 2) if options.certify else 0.0)


def run_call(
    call: Call, deadline: Deadline, on_progress: Callable[[Progress], None] | None = None, stop: Criterion | None = None
) -> Result:
    """Runs the candidates of a call until its deadline and makes the result.

    If the caller gave an earlier plan to keep close to, it also looks for a plan that differs less from that one. Errors that
    ``on_progress`` or ``stop`` raises are passed on.
    """
    stability_pass, options = call.stability_pass, call.options
    on_plan = None if stability_pass is None else stability_pass.remember
    # A warning about missing machine code. It is made before the run, because the run may compile the code.
    without_code = missing_code(f"stowplan.portfolio.{call.kind.name}")
    state = RunState(
        call.kind,
        call.problem,
        options,
        deadline,
        on_progress,
        baseline=call.baseline,
        on_plan=on_plan,
        hints=[*call.hints],
        warnings=[*call.warnings, *filter(None, [without_code])],
    )
    # The stability pass follows the run, which leaves it a part of the time.
    run_options, run_deadline = (options, deadline) if stability_pass is None else stability_pass.limits(options, deadline)
    run = Run(state, call.candidates, run_options, run_deadline, stop)
    stop_reason = run.run(call.starts)
    if stability_pass is not None and stability_pass.finish(state):
        stop_reason = "cancelled"
    result = result_of(run, call, stop_reason)
    if options.certify:
        result = certified(result, call.problem, state)
    return result if stability_pass is None else stability_pass.add_details(result)
