"""What a candidate is given, and how it reports: the same in a worker process and in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import msgspec

from stowplan.models.hint import Hint

if TYPE_CHECKING:
    import numpy as np


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to solve. Times in seconds."""

    time_limit: float = 30.0
    candidates: tuple[str, ...] = ("heuristic", "learned", "exact")
    """Families or names of candidates."""
    seed: int = 0
    workers: int = 2
    """Processes at most."""
    deterministic: bool = False
    """Limit work, not time: the same input, options and versions give the same plan, whatever the load of the machine.

    No clock decides what a candidate finds, so that whatever it does must count as at least what it costs.
    """
    work_limit: float | None = None
    """Work of a deterministic run, in seconds of a machine at leisure, roughly; ``time_limit`` where it is None."""
    gap: float = 0.0
    """Stop once (objective - bound) / objective is no more than this."""
    memory_limit: int | None = None
    """Bytes that the process of a candidate may hold, with what it has started; threads cannot be held to it."""
    certify: bool = False
    """Whether the result is to have a certificate of its bound."""

    @property
    def extent(self) -> float:
        """Seconds of the limit; in a deterministic run those that its work stands for."""
        return self.work_limit if self.deterministic and self.work_limit is not None else self.time_limit


class SolverLimits(TypedDict):
    """Keyword arguments that every exact model's ``solve`` takes."""

    time_limit: float
    deterministic_limit: float | None
    seed: int
    should_stop: Callable[[], bool]


class SolverOptions(SolverLimits):
    """The same for models that tell of better plans and bounds as they find them."""

    on_plan: Callable[[Any], None]
    on_bound: Callable[[int], None]


class Context:
    """A candidate's view of the run: what it may use, what others have found, and whom it tells.

    This one is alone: nobody hears it, nobody else finds anything, and nothing ends it. Runs say more.

    How long and with which seeds a candidate works is asked here and nowhere else, so that the same code serves both kinds of
    run. In a run against the clock, :meth:`closed` and :meth:`remaining` say when to end. In a deterministic run no clock may
    decide what is found, so that the candidate limits itself to the :meth:`work` that the work limit stands for.

    Parameters
    ----------
    options
        Those of the run.
    start_plan
        A plan to start from (verified), or None.
    """

    def __init__(self, options: Options, start_plan: Any = None):
        self.options, self.start_plan = options, start_plan

    # ------------------------------------------------------------------------------------------------- time, work, chance

    def closed(self) -> bool:
        """Whether to return now: time is up, the run is over, or nothing that this candidate still finds would count."""
        return False

    def remaining(self) -> float:
        """Seconds left."""
        return self.seconds()

    def seconds(self, part: float = 1.0) -> float:
        """A part of the time limit of the whole run; in a deterministic run of its work limit."""
        return part * self.options.extent

    def work(self, per_second: float, size: float = 1.0, *, least: int = 0) -> int | None:
        """How much of something is done in a deterministic run; None in others, where the clock is the limit.

        Parameters
        ----------
        per_second
            How much of it for each second of the limit: rounds, nodes, evaluations.
        size
            Of the problem: where this is twice as large, half as much is done.
        least
            What is done in any case.
        """
        return max(least, int(per_second * self.options.extent / size)) if self.options.deterministic else None

    def reporting(self, source: str, parts: float = 1.0, *, seconds: float | None = None) -> SolverOptions:
        """:meth:`solver_limits`, and functions that report what the solver finds under the name ``source``."""
        limits = self.solver_limits(parts, seconds=seconds)
        return {**limits, "on_plan": lambda plan: self.plan(plan, source), "on_bound": lambda bound: self.bound(bound, source)}

    def solver_limits(self, parts: float = 1.0, *, seconds: float | None = None) -> SolverLimits:
        """Limits, seed and stop of an exact model's solver, as keyword arguments of its ``solve``.

        Parameters
        ----------
        parts
            In a deterministic run the solver has one of so many parts of the work limit, in deterministic seconds.
        seconds
            Of the clock, at most; all that are left by default.
        """
        return {
            "time_limit": self.remaining() if seconds is None else seconds,
            "deterministic_limit": self.options.extent / parts if self.options.deterministic else None,
            "seed": self.seed(),
            "should_stop": self.closed,
        }

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

    def no_plan(self, source: str) -> None:
        """Report that a baseline has no plan: what makes it has come to its end, and nothing waits for it any more."""

    def bound(self, bound: int, source: str) -> None:
        """Report a proven lower bound; may be called again and again, each time with a better one."""

    def evidence(self, data: bytes) -> None:
        """Say what a bound rests on, for its certificate; better evidence takes the place of what was said before.

        Wanted where :attr:`Options.certify` is set. What the bytes mean is a matter of the kind's maker of certificates.
        """

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Report a proof that there is no plan. ``why`` joins the result's details; its ``explanation`` is for people."""

    def hint(self, hint: Hint) -> None:
        """Let the other candidates have a hint."""

    def follows(self, guide: str) -> None:
        """Say of which trained weights this candidate takes up the values now: file and sha256, for the provenance.

        Who hands a hint on does not say so: others may never look at it.
        """

    def note(self, text: str) -> None:
        """A remark for the report of the candidate."""

    # ------------------------------------------------------------------------------------------------------- from others

    def incumbent(self) -> tuple[Any, int | None]:
        """The best verified plan and bound of all candidates so far; in deterministic runs always those at the start."""
        return self.start_plan, None

    def hints(self) -> tuple[Hint, ...]:
        """Hints for this problem so far, checked: the caller's, then those of other candidates, the first come first.

        In deterministic runs the caller's alone.
        """
        return ()


class Overload(Protocol):
    """Why nothing fits, as the bounds of a kind find it."""

    @property
    def reason(self) -> str:
        """One sentence for people."""


#: A presolver takes no longer than so many seconds.
PRESOLVE_SECONDS = 1.5


def presolve_seconds(context: Context) -> float:
    """Seconds that a presolver may take."""
    return min(PRESOLVE_SECONDS, context.remaining())


def is_overloaded(context: Context, overload: Overload | None) -> bool:
    """Report an infeasibility that shows at once, where there is one."""
    if overload is not None:
        context.note(overload.reason)
        context.proven_infeasible("load")
    return overload is not None


def asks_for_heuristics(context: Context) -> bool:
    """Whether heuristics are among what is asked for, so that a presolver makes the kind's baseline."""
    return "heuristic" in context.options.candidates
