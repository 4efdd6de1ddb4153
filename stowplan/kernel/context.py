"""Options of a call, and the interface between a candidate and a run: what the candidate may read and how it reports.

The interface is the same in a worker process, in a thread and in a test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import msgspec

from stowplan.arguments import flag, number, show, whole
from stowplan.errors import UsageError
from stowplan.options import SEARCH, Option, declared, fields_of
from stowplan.work_rates import Rate

if TYPE_CHECKING:
    import numpy as np

    from stowplan.models.hint import Hint

W = TypeVar("W")

#: The families of candidates that a caller can select.
FAMILIES = ("heuristic", "learned", "exact")

#: Seeds are less than this, because solvers store them in 31 bits.
MAX_SEED = 2**31

_flag = partial(Option, SEARCH, has_flag=True)

#: Limit in seconds for a part of a run that has no time or work left. It is positive, because :class:`Options` requires it.
_SMALLEST_LIMIT = 1e-9

#: A time limit in seconds that no solver reaches.
_NO_TIME_LIMIT = 1e6


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a call of :func:`stowplan.solve`. Arguments may have any type that can be converted. Times and
    amounts of work are in seconds.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    """

    time_limit: Annotated[
        float, _flag("SECONDS", "Time limit, counted from the start of the command. Reading the input is included.")
    ] = 30.0
    candidates: Annotated[
        tuple[str, ...],
        _flag(
            "NAMES",
            "Methods that search for plans and bounds (candidates), separated by commas. Each name is a family of methods "
            "(heuristic, learned or exact) or a single method. The methods depend on the kind of problem; if a name is "
            "unknown, the error message lists all of them.",
            has_commas=True,
        ),
    ] = FAMILIES
    baseline: Annotated[
        str | None,
        _flag(
            "NAME",
            "Never return a plan that is worse than this baseline. NAME is the name of a simple heuristic "
            "(docs/reference/command-line.md lists these for each kind of problem), the name that --plan gives to an "
            "existing plan, or prod. prod stands for XLA's own plan if --plan gives it, and otherwise for the first of these "
            "heuristics. Without the option, the result is only compared with the baselines.",
        ),
    ] = None
    gap: Annotated[
        float,
        _flag(
            "GAP",
            "Stop the search once the gap, (objective - bound) / objective, is at most this number; 0.01 is 1 %. With the "
            "default, the search ends before the time limit only if the plan is proven optimal, or if all methods have "
            "finished.",
        ),
    ] = 0.0
    deterministic: Annotated[
        bool,
        _flag(
            "",
            "Limit the amount of work instead of the time, so that every run returns the same plan, byte for byte. An idle "
            "machine does this work within --time-limit; a busy machine takes longer. A run that has not finished after "
            "twice the time limit is stopped, and a warning says that another run may return a different plan.",
        ),
    ] = False
    """In such a run the clock must not influence what a candidate finds. Each step of its work counts as at least as many
    seconds as it takes on an idle machine."""
    work_limit: Annotated[
        float | None,
        Option(
            SEARCH,
            "SECONDS",
            "Limit on the work of a run with --deterministic: the work that an idle machine does in this many seconds. The "
            "default is the value of --time-limit.",
        ),
    ] = None
    """If it is None, ``time_limit`` takes its place."""
    seed: Annotated[int, _flag("N", "Seed of the random numbers that the search uses: a whole number, 0 or more.")] = 0
    workers: Annotated[int, _flag("N", "Maximum number of processes that search at the same time.")] = 2
    memory_limit: Annotated[
        int | None,
        Option(
            SEARCH,
            "SIZE",
            "Memory limit of the process in which a method of the search (candidate) runs, for example 2GB. A candidate "
            "that exceeds the limit is stopped, and the others continue. By default there is no limit. The option needs "
            "Linux, because it reads /proc.",
        ),
    ] = None
    """Bytes of a process together with its child processes. It does not apply to candidates in threads."""
    certify: Annotated[
        bool,
        Option(
            SEARCH,
            "",
            "Also make a certificate, which is a proof of the bound that can be checked without a solver. 'stowplan batch' "
            "writes it to NAME.proof.json. 'stowplan solve' makes it without this setting if --certificate names a file.",
        ),
    ] = False

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def extent(self) -> float:
        """The limit in seconds that candidates divide among themselves: the time limit, or in a deterministic run the work
        limit."""
        return self.work_limit if self.deterministic and self.work_limit is not None else self.time_limit

    def limited(self, seconds: float, work: float) -> Options:
        """Returns the options with other limits in seconds, for a part of a run. A limit of 0 or less becomes a tiny positive
        one. ``work`` is used only by deterministic runs."""
        limit = max(work, _SMALLEST_LIMIT) if self.deterministic else None
        return msgspec.structs.replace(self, time_limit=max(seconds, _SMALLEST_LIMIT), work_limit=limit)


def _checked(options: Options) -> dict[str, Any]:
    """Checks the fields and returns their values in plain types."""
    candidates: Any = options.candidates
    if isinstance(candidates, str):
        candidates = candidates.split(",")
    elif not isinstance(candidates, Iterable):
        raise UsageError(f"found candidates {show(candidates)}, expected names, as a list or separated by commas")
    names = tuple(candidates)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"found candidate {show(name)}, expected a name")
    memory = None if options.memory_limit is None else whole("a memory limit of {} bytes", options.memory_limit, 1)
    if memory is not None:
        # Imported here because most runs have no memory limit.
        from stowplan.process_memory import check_limits_possible

        check_limits_possible()
    work = None if options.work_limit is None else number("a work limit of {}", options.work_limit, 0.0, or_least=False)
    if work is not None and not options.deterministic:
        raise UsageError("found a work limit, which is for deterministic runs: expected --deterministic with it")
    if options.baseline is not None and not isinstance(options.baseline, str):
        raise UsageError(f"found baseline {show(options.baseline)}, expected a name")
    return {
        "time_limit": number("a time limit of {} s", options.time_limit, 0.0, or_least=False),
        "candidates": tuple(name.strip() for name in names),
        "seed": whole("seed {}", options.seed, 0, MAX_SEED - 1),
        "workers": whole("{} workers", options.workers, 1),
        "deterministic": flag("deterministic {}", options.deterministic),
        "work_limit": work,
        "gap": number("a gap of {}", options.gap, 0.0, 1.0),
        "memory_limit": memory,
        "certify": flag("certify {}", options.certify),
    }


#: The options by name.
SEARCH_OPTIONS = declared(fields_of(Options))


ReportType = Literal[
    "started", "plan", "no_plan", "bound", "evidence", "infeasible", "hint", "follows", "note", "done", "stopped", "failed"
]
"""The type of a message from a candidate to the run."""


class Report(msgspec.Struct):
    """A message from a candidate to the run."""

    what: ReportType
    """The type of message.

    A process sends ``started`` first, once the candidate is imported. Then come ``plan``, ``no_plan``, ``bound``, ``evidence``,
    ``infeasible``, ``hint``, ``follows`` and ``note`` in any order; the method of :class:`Context` that sends such a message
    says what it means. The last message is ``done``, ``stopped`` (by the time limit) or ``failed``.
    """
    source: str = ""
    """Name under which the result lists the finding; usually that of the candidate."""
    data: bytes = b""
    """With ``plan``, ``hint`` and ``evidence``: the finding, encoded."""
    bound: int = 0
    """With ``bound``: the bound, in the unit of the kind."""
    text: str = ""
    """With ``note``: the remark. With ``follows``: the file and hash of the trained network. With ``failed``: the error."""
    why: dict[str, Any] | None = None
    """With ``infeasible``: details for the result."""
    is_reusable: bool = False
    """With the last message: whether the worker process is in the same state as before the candidate, so that it can run
    another one."""

    @classmethod
    def failure(cls, error: BaseException) -> Self:
        """The last message of a candidate that raised an error."""
        return cls("failed", text=f"{type(error).__name__}: {error}")


class Context:
    """A candidate's interface to the run: options, a verified plan to start from (or None), the findings of other candidates,
    and functions that report the candidate's own. Findings are plans, bounds and hints.

    This base class stands for a run without other candidates: reports are ignored, and no limit ends it. Subclasses connect it
    to a real run.

    A candidate asks only this object how long it may work and which random seeds to use, so that the same code serves both
    kinds of runs. In a run against the clock, :meth:`closed` and :meth:`remaining` say when to end. In a deterministic run the
    clock must not influence the result, and the candidate limits itself to an amount of :meth:`work` that follows from the work
    limit.
    """

    def __init__(self, options: Options, start_plan: Any = None):
        self.options, self.start_plan = options, start_plan
        self.send: Callable[[Report], None] = lambda report: None
        """Called with each report of the candidate."""
        self._incumbent: tuple[Any, int | None] = (start_plan, None)
        self._hints: tuple[Hint, ...] = ()
        self._since = time.monotonic()

    # ------------------------------------------------------------------------------------------------- time, work, chance

    def closed(self) -> bool:
        """Whether the candidate must return now, because time is up, the run is over, or nothing that this candidate may still
        find could improve the result."""
        return False

    def remaining(self) -> float:
        """Seconds until this candidate must stop."""
        return self.seconds()

    def longest(self) -> float:
        """The most seconds that this candidate may still get, for solvers that check :meth:`closed` while they run.

        A candidate that makes way for others has a share of the time limit, and :meth:`closed` becomes true at the end of the
        share. If the others end early, the share is extended. A solver whose own time limit was the share would then stop too
        early, so it should get this number as its limit.
        """
        return self.remaining()

    def seconds(self, part: float = 1.0) -> float:
        """A part, from 0 to 1, of the time limit of the whole run in seconds; in a deterministic run, of its work limit."""
        return part * self.options.extent

    def work(self, rate: Rate, size: float = 1.0, *, least: int = 0) -> int | None:
        """The amount of work to do in a deterministic run, for example a number of rounds; None if the clock is the limit.

        It is the ``rate``, in units of work per second, times the work limit, divided by the ``size`` of the problem. It is
        never less than ``least``.
        """
        return max(least, int(rate.per_second * self.options.extent / size)) if self.options.deterministic else None

    def within(self, part: float) -> Callable[[], bool]:
        """Returns a function that says whether this part of the time limit has passed since this call, or whether the candidate
        must return.

        In a deterministic run the time does not count, because :meth:`work` limits the candidate.
        """
        return self.within_seconds(self.seconds(part))

    def within_seconds(self, seconds: float) -> Callable[[], bool]:
        """The same as :meth:`within` for a number of seconds."""
        until = math.inf if self.options.deterministic else time.monotonic() + seconds
        return lambda: self.closed() or time.monotonic() >= until

    def limits(self, seconds: float, work: W) -> tuple[float, W | None]:
        """The limits for a call of a solver: ``(seconds, None)`` in a run against the clock. In a deterministic run they are a
        time limit that is never reached, and ``work``."""
        return (_NO_TIME_LIMIT, work) if self.options.deterministic else (seconds, None)

    def units(self, rate: Rate) -> float | None:
        """A limit in units that a solver counts itself, such as CP-SAT's deterministic seconds; None if the clock is the
        limit."""
        return rate.per_second * self.options.extent if self.options.deterministic else None

    def is_last(self, part: float) -> bool:
        """Whether at most this part of the candidate's own time is left; always False in a deterministic run."""
        left = self.remaining()
        return not self.options.deterministic and left < part * (left + time.monotonic() - self._since)

    def part_of_rest(self, part: float) -> float:
        """A part of the seconds that are left; in a deterministic run the whole work limit."""
        return self.seconds() if self.options.deterministic else part * self.remaining()

    def seed(self, stream: int = 0) -> int:
        """Seed of one of the run's streams of random numbers: the run's seed plus ``stream``. Candidates that should behave
        differently use different streams."""
        return self.options.seed + stream

    def rng(self, stream: int = 0) -> np.random.Generator:
        """A new random generator at the beginning of a stream."""
        import numpy as np

        return np.random.default_rng(self.seed(stream))

    # --------------------------------------------------------------------------------------------------------- to others

    def plan(self, plan: Any, source: str) -> None:
        """Reports a plan under the name of its source. It may be called repeatedly, with better and better plans."""
        self.send(Report("plan", source, msgspec.json.encode(plan)))

    def no_plan(self, source: str) -> None:
        """Reports that there will be no plan of a baseline, so that the run does not wait for one."""
        self.send(Report("no_plan", source))

    def bound(self, bound: int, source: str) -> None:
        """Reports a proven lower bound. It may be called repeatedly, with better and better bounds."""
        self.send(Report("bound", source, bound=bound))

    def evidence(self, data: bytes) -> None:
        """Reports the evidence that a bound rests on, for a certificate.

        It belongs to the largest bound that this candidate has reported before. Of each candidate, the evidence for its two
        largest bounds is kept. It is needed only if :attr:`Options.certify` is set. Only the certificate maker of the kind
        interprets the bytes.
        """
        self.send(Report("evidence", data=data))

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Reports a proof that no plan exists. ``why`` is added to the result's details; its entry ``explanation`` is a
        sentence for people."""
        self.send(Report("infeasible", source, why=why))

    def hint(self, hint: Hint) -> None:
        """Sends a hint to the other candidates."""
        self.send(Report("hint", hint.source, msgspec.json.encode(hint)))

    def follows(self, guide: str) -> None:
        """Reports that this candidate now uses the values of a trained network, given by its file and SHA-256 hash, for the
        provenance.

        A candidate that only passes a hint on does not report this, because the others may never use it.
        """
        self.send(Report("follows", text=guide))

    def note(self, text: str) -> None:
        """Adds a remark to this candidate's entry in the result."""
        self.send(Report("note", text=text))

    # ------------------------------------------------------------------------------------------------------- from others

    def incumbent(self) -> tuple[Any, int | None]:
        """The best verified plan and the best bound of all candidates so far.

        In a deterministic run these are always the plan at the start and no bound, because the findings of others at a given
        moment depend on the load of the machine.
        """
        return self._incumbent

    def heard(self) -> Callable[[], Any] | None:
        """Returns a function that returns the best plan so far; None in a deterministic run, in which candidates exchange
        nothing."""
        return None if self.options.deterministic else lambda: self.incumbent()[0]

    def hints(self) -> tuple[Hint, ...]:
        """The hints for this problem so far, checked, in the order in which they arrived: first the caller's hint, then the
        hints of other candidates.

        In a deterministic run there are only the caller's.
        """
        return self._hints
