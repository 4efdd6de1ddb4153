"""What a candidate is given, and how it reports: the same in a worker process and in a test."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from stowplan.models.hint import Hint


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

    Candidates size their work by ``time_limit``, such that a machine at leisure does it in about a third of that time. No clock
    ends it, so that whatever they do must count as at least what it costs.
    """
    gap: float = 0.0
    """Stop once (objective - bound) / objective is no more than this."""
    memory_limit: int | None = None
    """Bytes that the process of a candidate may hold, with what it has started; threads cannot be held to it."""


class Context(Protocol):
    """A candidate's view of the run. ``plan`` and ``bound`` may be called again and again, each time with something better."""

    options: Options
    start_plan: Any
    """A plan to start from (verified), or None."""

    def plan(self, plan: Any, source: str) -> None:
        """Report a plan under the name of what made it."""

    def bound(self, bound: int, source: str) -> None:
        """Report a proven lower bound."""

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Report a proof that there is no plan. ``why`` joins the result's details; its ``explanation`` is for people."""

    def incumbent(self) -> tuple[Any, int | None]:
        """The best verified plan and bound of all candidates so far; in deterministic runs always those at the start."""

    def hint(self, hint: Hint) -> None:
        """Let the other candidates have a hint."""

    def hints(self) -> tuple[Hint, ...]:
        """Hints for this problem so far, checked: the caller's, then those of other candidates, the first come first.

        In deterministic runs the caller's alone.
        """

    def stop(self) -> bool:
        """Whether to return now."""

    def remaining(self) -> float:
        """Seconds left."""

    def follows(self, guide: str) -> None:
        """Say of which trained weights this candidate takes up the values now: file and sha256, for the provenance.

        Who hands a hint on does not say so: others may never look at it.
        """

    def note(self, text: str) -> None:
        """A remark for the report of the candidate."""
