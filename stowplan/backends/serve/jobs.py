"""Carries out one request of ``stowplan serve``: reads a problem, and solves it or verifies a plan.

A *deterministic* run is a search that is limited by an amount of work instead of a time. For such a run a client may ask for a
*fallback*: the plan of a fixed, small amount of heuristic work. It is the answer if the deadline comes before the run ends.
Only :mod:`stowplan.backends.serve.server` handles several requests, and reads and writes lines.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from stowplan import kinds, result
from stowplan.arguments import show, size
from stowplan.backends.serve.messages import Answer, Progress, Request, Result, Solve, Verification, Verify
from stowplan.deadline import read_within
from stowplan.errors import UsageError
from stowplan.frontends import problem_file
from stowplan.frontends.formats import Opened, Source, check_regular
from stowplan.frontends.options import OPTIONS, ReadOptions
from stowplan.frontends.read import open_input, read_plan
from stowplan.kernel.context import SEARCH_OPTIONS, Options
from stowplan.kernel.kind import check, kind_of
from stowplan.kernel.solve import CEILING, solve
from stowplan.kernel.workers.warm import STOP_SECONDS

#: Work limit of a deterministic request that sets none, for each second of ``deadline_ms``. A unit of work is a number of steps
#: of the algorithms that was chosen so that an idle machine needs less than a second for it (:mod:`stowplan.work_rates`). The
#: limit is less than 1 because a busy machine takes longer for the same work.
_WORK_PART = 0.5
#: Work limit of the fallback, in the same unit.
FALLBACK_WORK = 1 / 16
#: Time limit of the fallback in seconds. It is so long that it never decides which plan is found.
_FALLBACK_LIMIT = 3600.0

#: Values of ``Result.stop_reason`` after which more work would not change the result.
_SETTLED = ("optimal", "infeasible", "fits", "gap_reached")

#: Time limit of a search in seconds if the deadline has passed or is nearer than this. The search then returns the simplest
#: plan of the kind of problem.
_LEAST_SECONDS = 0.001
#: Messages give this as the source of a problem or a plan that is part of the line itself.
_INLINE = "the request"

#: Names of the search options that requests may use. The time limit is not among them, because the deadline replaces it.
_SEARCH = tuple(name for name in SEARCH_OPTIONS if name != "time_limit")


@dataclass(eq=False)
class Job:
    """A request that has been accepted."""

    request: Request
    """A request to solve or to verify."""
    received: float = field(default_factory=time.monotonic)
    """When its line arrived, by ``time.monotonic``."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Once it is set, the search ends with the best plan so far."""

    @property
    def deadline(self) -> float:
        """When the answer is due, by ``time.monotonic``; infinity if the request has no deadline."""
        return self.received + self.request.deadline_ms / 1000 if isinstance(self.request, Solve) else float("inf")

    @property
    def left(self) -> float:
        """Seconds until the deadline, negative afterwards."""
        return self.deadline - time.monotonic()

    @property
    def keeps_working(self) -> bool:
        """Whether the request is carried out even if its deadline passes while it waits.

        It is if the request verifies a plan, or asks for a fallback.
        """
        return not isinstance(self.request, Solve) or self.request.fallback


def run(job: Job, defaults: Options, cache: Any, send: Callable[[Answer], None]) -> Answer:
    """Carries out a request and returns its answer.

    Parameters
    ----------
    job
        The request.
    defaults
        Options of the search for which the request has no value. Its ``workers`` is the largest number that a request may have.
    cache
        A plan cache, which keeps results of earlier calls, as for :func:`stowplan.solve`; None for no cache.
    send
        Is called with each line about the progress, if the request asks for them.

    Raises
    ------
    InputError
        A problem or a plan cannot be read, or a plan in ``plans`` is not valid for the problem.
    UsageError
        An option is unknown, out of range, or does not apply to the problem.
    TimeLimitError
        The deadline passed while the problem was read. A deterministic run has no such limit.
    MissingDependencyError
        A file needs a package that is not installed.
    """
    return _verified(job.request) if isinstance(job.request, Verify) else _Search(job, defaults, cache, send).answer()


class _Search:
    """Carries out a request to solve; the parameters are those of :func:`run`."""

    def __init__(self, job: Job, defaults: Options, cache: Any, send: Callable[[Answer], None]):
        assert isinstance(job.request, Solve)
        self._job, self._request, self._cache, self._send = job, job.request, cache, send
        self._read_options, self._options = read_options(self._request, defaults)
        self._waited = time.monotonic() - job.received
        # The result of a deterministic run must not depend on how long reading took.
        limit = None if self._options.deterministic else self._request.deadline_ms / 1000
        self._opened = read_within(limit, partial(_opened, self._request.problem, self._read_options), job.received)
        self._plans = {name: _plan(data, self._opened.problem) for name, data in self._request.plans.items()}
        self._before = time.monotonic() - job.received

    def answer(self) -> Result:
        """Searches, and returns the answer."""
        outcome, is_fallback = self._with_fallback() if self._request.fallback else (self._solved_in_time(), False)
        outcome = outcome.within(self._request.deadline_ms / 1000, self._before)
        outcome = msgspec.structs.replace(outcome, warnings=(*self._opened.warnings, *outcome.warnings))
        return Result(
            id=self._request.id,
            fallback=is_fallback,
            waited_ms=round(1000 * self._waited, 3),
            total_ms=round(1000 * (time.monotonic() - self._job.received), 3),
            result=outcome.to_dict(),
            certificate=None if outcome.certificate is None else msgspec.to_builtins(outcome.certificate),
        )

    def _with_fallback(self) -> tuple[result.Result, bool]:
        """Solves the problem; returns the result, and whether it is the fallback.

        The fallback is returned if the deadline comes before the end of the complete run.
        """
        # The work of the fallback does not depend on the deadline. It is only smaller if the client asks for less work.
        work = min(FALLBACK_WORK, self._request.options.get("work_limit") or FALLBACK_WORK)
        first = self._solved(
            msgspec.structs.replace(self._options, candidates=("heuristic",), work_limit=work, certify=False), _FALLBACK_LIMIT
        )
        # If the heuristics have ended with a final result, no more work is needed. Whether they have does not depend on the
        # load of the machine.
        if first.stop_reason in (*_SETTLED, "cancelled"):
            return first, False
        if self._job.left > 0:
            complete = self._solved_in_time()
            # A run that ended early may find another plan the next time; it is only used if there is no fallback.
            if not complete.cut_short or complete.stop_reason == "cancelled" or first.plan is None:
                return complete, False
        return first, True

    def _solved_in_time(self) -> result.Result:
        """Solves the problem with the options of the request within the time that is left."""
        # When a run reaches its time limit, it waits up to STOP_SECONDS for its candidates.
        seconds = max(_LEAST_SECONDS, self._job.left - min(STOP_SECONDS, 0.2 * self._options.time_limit))
        # A deterministic run ends at the latest after CEILING times its time limit.
        return self._solved(self._options, seconds / CEILING if self._options.deterministic else seconds)

    def _solved(self, options: Options, time_limit: float) -> result.Result:
        """Solves the problem with these options, but with another time limit in seconds."""
        options = msgspec.structs.replace(options, time_limit=time_limit)
        on_progress = self._report if self._request.progress else None
        return solve(
            self._opened.problem,
            **msgspec.structs.asdict(options),
            plans=self._plans,
            cache=self._cache,
            cancel=self._job.cancel,
            on_progress=on_progress,
        )

    def _report(self, state: result.Progress) -> None:
        """Sends a line about the progress."""
        at = {name: getattr(state, name) for name in ("seconds", "objective", "bound", "source")}
        self._send(Progress(id=self._request.id, **at))


def _verified(request: Verify) -> Verification:
    """Carries out a request to verify. A plan that breaks rules is no error: the answer lists the broken rules."""
    options = _only_reading(request.options)
    problem = _opened(request.problem, options).problem
    verdict = check(kind_of(problem), problem, _plan(request.plan, problem))
    violations = [{"code": violation.code, "message": violation.message} for violation in verdict.violations]
    return Verification(id=request.id, ok=verdict.ok, objective=verdict.objective, violations=violations)


def read_options(request: Solve, defaults: Options) -> tuple[ReadOptions, Options]:
    """Returns the options with which the problem of a request is read, and the options of the search.

    The time limit of the search is the deadline of the request, in seconds.

    Parameters
    ----------
    request
        A request to solve.
    defaults
        Options of the search for which the request has no value. Its ``workers`` is the largest number that a request may have.

    Raises
    ------
    UsageError
        An option does not exist, a value has a wrong type or is out of range, or the request asks for more workers than the
        server has.
    """
    values = dict(request.options)
    search_values = {name: values.pop(name) for name in _SEARCH if name in values}
    if search_values.get("memory_limit") is not None:
        search_values["memory_limit"] = size("a memory limit of {}", search_values["memory_limit"], 1)
    search_values["time_limit"] = request.deadline_ms / 1000
    if request.fallback:
        search_values["deterministic"] = True
    options = Options(**msgspec.structs.asdict(defaults) | search_values)
    if options.deterministic and options.work_limit is None:
        # The work must not depend on how long the request waited.
        options = msgspec.structs.replace(options, work_limit=_WORK_PART * options.time_limit)
    if options.workers > defaults.workers:
        raise UsageError(f"found workers {options.workers}, expected at most the {defaults.workers} of this server")
    return _only_reading(values), options


def _only_reading(values: Mapping[str, Any]) -> ReadOptions:
    """Returns the options with which a problem is read; raises UsageError for other names and for values of a wrong type."""
    for name, value in values.items():
        if name not in OPTIONS:
            names = (*OPTIONS, *_SEARCH)
            close = ["deadline_ms"] if name == "time_limit" else difflib.get_close_matches(name, names, 1)
            advice = f"; perhaps {close[0]}" if close else ""
            raise UsageError(f"options: found {name!r}, expected some of {', '.join(names)}{advice}")
        is_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if OPTIONS[name].is_several and not (is_list or isinstance(value, dict)):
            raise UsageError(f"options: found {name} {show(value)}, expected a list of texts")
    capacity = values.get("capacity")
    sizes = {"capacity": size("a capacity of {}", capacity)} if isinstance(capacity, str) else {}
    try:
        return ReadOptions(**dict(values) | sizes)
    except TypeError as error:
        raise UsageError(f"options: {error}") from error


def _opened(data: msgspec.Raw, options: ReadOptions) -> Opened:
    """Reads a problem from a line, or from the file that it names.

    Raises InputError if it is not valid, and UsageError if an option does not apply to it.
    """
    path = _path(data)
    if path is not None:
        return open_input(path, options)
    source = Source(Path(_INLINE), bytes(data), options.target)
    accepted = problem_file.FORMAT.accepts(source)
    for name in options.given():
        if name not in accepted:
            raise UsageError(f"{_INLINE} has a problem already, which does not take the option {name!r}")
    return problem_file.FORMAT.open(source, options)


def _plan(data: msgspec.Raw, problem: Any) -> Any:
    """Reads a plan from a line, or from the file that it names; raises InputError if it is not valid."""
    path = _path(data)
    if path is not None:
        check_regular(path)
        return read_plan(path, problem)
    return kinds.of_plan_file(bytes(data), _INLINE).plan.decode(bytes(data), _INLINE)


def _path(data: msgspec.Raw) -> str | None:
    """Returns the path of a file if a value is text; None for all other values.

    Raises UsageError for text that is not valid JSON.
    """
    value = bytes(data)
    if value[:1] != b'"':
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError as error:
        raise UsageError(f"found {show(value.decode())}, expected the path of a file: {error}") from error
