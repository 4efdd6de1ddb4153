"""Reads, solves and verifies what one request asks for. Nothing here knows of other requests, or of the lines."""

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
from stowplan.frontends.options import OPTIONS, ReadOptions, spelt
from stowplan.frontends.read import open_input, read_plan
from stowplan.kernel.context import SEARCH_OPTIONS, Options
from stowplan.kernel.kind import check, kind_of
from stowplan.kernel.solve import CEILING, solve
from stowplan.kernel.workers.warm import STOP_SECONDS

#: Work of a deterministic run that states none, as a part of the deadline: a busy machine may take longer than an idle one.
_WORK_PART = 0.5
#: Work of the fallback, in seconds of an idle machine.
FALLBACK_WORK = 1 / 16
#: Time limit of the fallback in seconds. It is so long that it never decides which plan is found.
_FALLBACK_LIMIT = 3600.0

#: Reasons to stop that more work could not change.
_SETTLED = ("optimal", "infeasible", "fits", "gap_reached")

#: Smallest time limit of a search whose deadline has passed or is about to; it returns the simplest plan of the kind.
_LEAST_SECONDS = 0.001
#: What messages call a problem or a plan that is a part of the line.
_INLINE = "the request"

#: Names that requests may use for options of the search. The time limit is the deadline.
_SEARCH = tuple(name for name in SEARCH_OPTIONS if name != "time_limit")


@dataclass(eq=False)
class Job:
    """A request that has been accepted."""

    request: Request
    received: float = field(default_factory=time.monotonic)
    """When its line arrived, on the monotonic clock."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set to end it with the best plan so far."""

    @property
    def deadline(self) -> float:
        """When the answer is due, on the monotonic clock; infinity if the request has no deadline."""
        return self.received + self.request.deadline_ms / 1000 if isinstance(self.request, Solve) else float("inf")

    @property
    def left(self) -> float:
        """Seconds until the deadline, negative afterwards."""
        return self.deadline - time.monotonic()

    @property
    def keeps_working(self) -> bool:
        """Whether it is done even if its deadline is over before it could begin."""
        return not isinstance(self.request, Solve) or self.request.fallback


def run(job: Job, defaults: Options, cache: Any, send: Callable[[Answer], None]) -> Answer:
    """Does what a request asks for, and returns the answer; lines about the progress go to ``send``.

    Parameters
    ----------
    job
        A job with a request to solve or to verify.
    defaults
        Options of the search that hold where the request states none; its workers are the most that a request may ask for.
    cache
        Plan cache, or None.

    Raises
    ------
    StowplanError
        The request cannot be carried out.
    """
    return _verified(job.request) if isinstance(job.request, Verify) else _Search(job, defaults, cache, send).answer()


class _Search:
    """The search that a request asks for; the parameters are those of :func:`run`."""

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
        """Searches and returns the answer."""
        found, is_fallback = self._with_fallback() if self._request.fallback else (self._solved_in_time(), False)
        found = found.within(self._request.deadline_ms / 1000, self._before)
        found = msgspec.structs.replace(found, warnings=(*self._opened.warnings, *found.warnings))
        return Result(
            id=self._request.id,
            fallback=is_fallback,
            waited_ms=round(1000 * self._waited, 3),
            total_ms=round(1000 * (time.monotonic() - self._job.received), 3),
            result=found.to_dict(),
            certificate=None if found.certificate is None else msgspec.to_builtins(found.certificate),
        )

    def _with_fallback(self) -> tuple[result.Result, bool]:
        """The result of the whole work or, if the deadline comes first, of the fallback; and whether it is the fallback."""
        # The same for every deadline, unless the client asks for less.
        work = min(FALLBACK_WORK, self._request.options.get("work_limit") or FALLBACK_WORK)
        first = self._solved(
            msgspec.structs.replace(self._options, candidates=("heuristic",), work_limit=work, certify=False), _FALLBACK_LIMIT
        )
        # If heuristics settle the matter, more work is needless. That does not depend on the load of the machine either.
        if first.stop_reason in (*_SETTLED, "cancelled"):
            return first, False
        if self._job.left > 0:
            whole = self._solved_in_time()
            # A plan that may not be found again is better than none.
            if not whole.cut_short or whole.stop_reason == "cancelled" or first.plan is None:
                return whole, False
        return first, True

    def _solved_in_time(self) -> result.Result:
        """Solves the problem with the options of the request within the time that is left."""
        # At its limit, a run waits for its candidates for a moment.
        seconds = max(_LEAST_SECONDS, self._job.left - min(STOP_SECONDS, 0.2 * self._options.time_limit))
        # A deterministic run ends at a multiple of its time limit.
        return self._solved(self._options, seconds / CEILING if self._options.deterministic else seconds)

    def _solved(self, options: Options, time_limit: float) -> result.Result:
        """Solves the problem with these options and a time limit in seconds."""
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
    """Verifies a plan."""
    options = _only_reading(request.options)
    problem = _opened(request.problem, options).problem
    found = check(kind_of(problem), problem, _plan(request.plan, problem))
    violations = [{"code": violation.code, "message": violation.message} for violation in found.violations]
    return Verification(id=request.id, ok=found.ok, objective=found.objective, violations=violations)


def read_options(request: Solve, defaults: Options) -> tuple[ReadOptions, Options]:
    """The options of a request: those of the input, and those of the search.

    Raises
    ------
    UsageError
        An option that does not exist, a value of a wrong type or out of range, or more workers than the server has.
    """
    values = dict(request.options)
    given = {name: values.pop(name) for name in _SEARCH if name in values}
    if given.get("memory_limit") is not None:
        given["memory_limit"] = size("a memory limit of {}", given["memory_limit"], 1)
    given["time_limit"] = request.deadline_ms / 1000
    if request.fallback:
        given["deterministic"] = True
    options = Options(**msgspec.structs.asdict(defaults) | given)
    if options.deterministic and options.work_limit is None:
        # The work must not depend on how long the request waited.
        options = msgspec.structs.replace(options, work_limit=_WORK_PART * options.time_limit)
    if options.workers > defaults.workers:
        raise UsageError(f"found workers {options.workers}, expected at most the {defaults.workers} of this server")
    return _only_reading(values), options


def _only_reading(values: Mapping[str, Any]) -> ReadOptions:
    """The options of an input; raises UsageError for other names."""
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
    """Reads a problem from a line, or from the file that it names."""
    path = _path(data)
    if path is not None:
        return open_input(path, options)
    source = Source(Path(_INLINE), bytes(data), options.target)
    accepted = problem_file.FORMAT.accepts(source)
    for name in options.given():
        if name not in accepted:
            raise UsageError(f"{_INLINE} has a problem already, which does not take {spelt(name)}")
    return problem_file.FORMAT.open(source, options)


def _plan(data: msgspec.Raw, problem: Any) -> Any:
    """Reads a plan from a line, or from the file that it names."""
    path = _path(data)
    if path is not None:
        check_regular(path)
        return read_plan(path, problem)
    return kinds.of_plan_file(bytes(data), _INLINE).plan.decode(bytes(data), _INLINE)


def _path(data: msgspec.Raw) -> str | None:
    """The path in a value that is text; None for all other values."""
    value = bytes(data)
    if value[:1] != b'"':
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError as error:
        raise UsageError(f"found {show(value.decode())}, expected the path of a file: {error}") from error
