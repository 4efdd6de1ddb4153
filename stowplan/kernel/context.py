"""What a candidate is given, and how it reports: the same in a worker process and in a test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec

from stowplan.arguments import flag, number, show, whole
from stowplan.errors import UsageError
from stowplan.options import SEARCH, Option, declared, fields_of
from stowplan.work_rates import Rate

if TYPE_CHECKING:
    import numpy as np

    from stowplan.models.hint import Hint

W = TypeVar("W")

FAMILIES = ("heuristic", "learned", "exact")

#: Seeds are below this: solvers keep them in 31 bits.
MAX_SEED = 2**31

_flag = partial(Option, SEARCH, has_flag=True)

#: Seconds, or work, of what has none left.
_NEXT_TO_NONE = 1e-9

#: Seconds that bind no solver.
_ENDLESS = 1e6


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to solve, checked and made plain: the values given may be of any type. Times in seconds.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    """

    time_limit: Annotated[float, _flag("SECONDS", "Time limit, counted from the start of the command.")] = 30.0
    candidates: Annotated[
        tuple[str, ...],
        _flag(
            "NAMES", "Candidates to run: families (heuristic, learned, exact) or names, separated by commas.", has_commas=True
        ),
    ] = FAMILIES
    baseline: Annotated[
        str | None,
        _flag(
            "NAME",
            "Return a plan that is at least as good as this baseline. 'prod' is XLA's plan if --plan "
            "xla=FILE is given, otherwise the kind's default.",
        ),
    ] = None
    gap: Annotated[float, _flag("GAP", "Stop when the gap between plan and bound is at most this, for example 0.01.")] = 0.0
    deterministic: Annotated[bool, _flag("", "Limit work instead of time: every run returns the same plan, byte for byte.")] = (
        False
    )
    """No clock decides what a candidate finds, so that whatever it does must count as at least what it costs."""
    work_limit: Annotated[
        float | None, Option(SEARCH, "SECONDS", "Work of a deterministic run, in seconds of an idle machine.")
    ] = None
    """``time_limit`` where it is None."""
    seed: Annotated[int, _flag("N", "Seed of everything random.")] = 0
    workers: Annotated[int, _flag("N", "Maximum number of worker processes.")] = 2
    memory_limit: Annotated[
        int | None,
        Option(
            SEARCH,
            "SIZE",
            "Memory limit of the process of each candidate, for example 2GB; a candidate that needs "
            "more fails, the others continue.",
        ),
    ] = None
    """In bytes, of a process with what it has started; threads cannot be held to it."""
    certify: Annotated[bool, Option(SEARCH, "", "Also make a proof of the bound that can be checked without solvers.")] = False

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def extent(self) -> float:
        """Seconds of the limit; in a deterministic run those that its work stands for."""
        return self.work_limit if self.deterministic and self.work_limit is not None else self.time_limit

    def limited(self, seconds: float, work: float) -> Options:
        """The same with other limits; that of work counts in a deterministic run alone."""
        limit = max(work, _NEXT_TO_NONE) if self.deterministic else None
        return msgspec.structs.replace(self, time_limit=max(seconds, _NEXT_TO_NONE), work_limit=limit)


def _checked(options: Options) -> dict[str, Any]:
    """Plain values of the fields, whatever they were given as."""
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
        # Not at the top: most runs have no limit.
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


#: The options by their names.
SEARCH_OPTIONS = declared(fields_of(Options))


class Report(msgspec.Struct):
    """What a candidate says to the run."""

    what: str
    """First ``started``, when the candidate is loaded; then ``plan``, ``no_plan``, ``bound``, ``evidence``, ``infeasible``,
    ``hint``, ``follows``, ``note``; the last one: ``done``, ``stopped`` (by time) or ``failed``."""
    source: str = ""
    data: bytes = b""
    """A plan, a hint, or evidence."""
    bound: int = 0
    text: str = ""
    why: dict[str, Any] | None = None
    """With ``infeasible``: details for the result."""
    waits: bool = False
    """With the last one: the worker is as it was before the job, and takes another."""

    @classmethod
    def failure(cls, error: BaseException) -> Self:
        """The last one, of a candidate that has raised something."""
        return cls("failed", text=f"{type(error).__name__}: {error}")


class Context:
    """A candidate's view of the run: options, a plan to start from (verified) or None, what others have found, whom it tells.

    This one is alone: nobody hears it, nobody else finds anything, and nothing ends it. Runs say more.

    How long and with which seeds a candidate works is asked here and nowhere else, so that the same code serves both kinds of
    run. In a run against the clock, :meth:`closed` and :meth:`remaining` say when to end. In a deterministic run no clock may
    decide what is found, so that the candidate limits itself to the :meth:`work` that the work limit stands for.
    """

    def __init__(self, options: Options, start_plan: Any = None):
        self.options, self.start_plan = options, start_plan
        self.send: Callable[[Report], None] = lambda report: None
        """Takes the reports."""
        self._incumbent: tuple[Any, int | None] = (start_plan, None)
        self._hints: tuple[Hint, ...] = ()
        self._since = time.monotonic()

    # ------------------------------------------------------------------------------------------------- time, work, chance

    def closed(self) -> bool:
        """Whether to return now: time is up, the run is over, or nothing that this candidate still finds would count."""
        return False

    def remaining(self) -> float:
        """Seconds left."""
        return self.seconds()

    def longest(self) -> float:
        """Seconds left at most: the time limit of whatever asks :meth:`closed` while it runs, as solvers do.

        A candidate that makes way for others has a share of the time limit, at whose end it is closed. Where the others have
        come to their end by then, the share is extended, and a solver that was started with it as its limit would stop early.
        """
        return self.remaining()

    def seconds(self, part: float = 1.0) -> float:
        """A part of the time limit of the whole run; in a deterministic run of its work limit."""
        return part * self.options.extent

    def work(self, rate: Rate, size: float = 1.0, *, least: int = 0) -> int | None:
        """How much of something is done in a deterministic run; None in others, where the clock is the limit.

        Of a problem of twice the ``size`` half as much is done, and ``least`` in any case.
        """
        return max(least, int(rate.per_second * self.options.extent / size)) if self.options.deterministic else None

    def within(self, part: float) -> Callable[[], bool]:
        """Says from now on whether a part of the time limit is over, or the candidate is to return.

        In a deterministic run only whether it is to return: what it does is limited by :meth:`work`.
        """
        return self.within_seconds(self.seconds(part))

    def within_seconds(self, seconds: float) -> Callable[[], bool]:
        """The same for so many seconds."""
        until = math.inf if self.options.deterministic else time.monotonic() + seconds
        return lambda: self.closed() or time.monotonic() >= until

    def limits(self, seconds: float, work: W) -> tuple[float, W | None]:
        """What limits a call of a solver: ``(seconds, None)``; in a deterministic run no seconds that bind, and ``work``."""
        return (_ENDLESS, work) if self.options.deterministic else (seconds, None)

    def units(self, rate: Rate) -> float | None:
        """The same of what solvers count themselves, as CP-SAT does in deterministic seconds."""
        return rate.per_second * self.options.extent if self.options.deterministic else None

    def is_last(self, part: float) -> bool:
        """Whether no more than this part of the candidate's own time is left. Never so in a deterministic run."""
        left = self.remaining()
        return not self.options.deterministic and left < part * (left + time.monotonic() - self._since)

    def part_of_rest(self, part: float) -> float:
        """Seconds: a part of those left; in a deterministic run all that the work limit stands for."""
        return self.seconds() if self.options.deterministic else part * self.remaining()

    def seed(self, stream: int = 0) -> int:
        """Seed of one of the run's streams of random numbers. Candidates of a kind that must differ take different streams."""
        return self.options.seed + stream

    def rng(self, stream: int = 0) -> np.random.Generator:
        """A new generator at the beginning of a stream."""
        import numpy as np

        return np.random.default_rng(self.seed(stream))

    # --------------------------------------------------------------------------------------------------------- to others

    def plan(self, plan: Any, source: str) -> None:
        """Report a plan under the name of what made it; may be called again and again, each time with a better one."""
        self.send(Report("plan", source, msgspec.json.encode(plan)))

    def no_plan(self, source: str) -> None:
        """Report that a baseline has no plan: what makes it has come to its end, and nothing waits for it any more."""
        self.send(Report("no_plan", source))

    def bound(self, bound: int, source: str) -> None:
        """Report a proven lower bound; may be called again and again, each time with a better one."""
        self.send(Report("bound", source, bound=bound))

    def evidence(self, data: bytes) -> None:
        """Say what a bound rests on, for its certificate; better evidence takes the place of what was said before.

        Wanted where :attr:`Options.certify` is set. What the bytes mean is a matter of the kind's maker of certificates.
        """
        self.send(Report("evidence", data=data))

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Report a proof that there is no plan. ``why`` joins the result's details; its ``explanation`` is for people."""
        self.send(Report("infeasible", source, why=why))

    def hint(self, hint: Hint) -> None:
        """Let the other candidates have a hint."""
        self.send(Report("hint", hint.source, msgspec.json.encode(hint)))

    def follows(self, guide: str) -> None:
        """Say of which trained weights this candidate takes up the values now: file and sha256, for the provenance.

        Who hands a hint on does not say so: others may never look at it.
        """
        self.send(Report("follows", text=guide))

    def note(self, text: str) -> None:
        """A remark for the report of the candidate."""
        self.send(Report("note", text=text))

    # ------------------------------------------------------------------------------------------------------- from others

    def incumbent(self) -> tuple[Any, int | None]:
        """The best verified plan and bound of all candidates so far.

        In a deterministic run always the plan at the start, and no bound: what others find by a moment is a matter of load.
        """
        return self._incumbent

    def heard(self) -> Callable[[], Any] | None:
        """A function that says the best plan of all at any moment; None in a deterministic run, in which nothing is heard."""
        return None if self.options.deterministic else lambda: self.incumbent()[0]

    def hints(self) -> tuple[Hint, ...]:
        """Hints for this problem so far, checked: the caller's, then those of other candidates, the first come first.

        In deterministic runs the caller's alone.
        """
        return self._hints
