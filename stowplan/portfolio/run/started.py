"""What is known of a candidate that was started, for the run and for its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.worker_process import Assignment
from stowplan.portfolio.run.worker_thread import ThreadAssignment
from stowplan.result import CandidateReport

#: A report keeps so many remarks of one candidate, each of so many characters.
_NOTES, _NOTE_LENGTH = 10, 500

Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]


@dataclass
class Started:
    """What is known of one candidate that was started."""

    number: int
    candidate: Candidate
    began: float
    until: float
    """When it is to stop; like all times here in seconds since the start of the run."""
    process: Assignment | ThreadAssignment | None = None
    objective: int | None = None
    bound: int | None = None
    outcome: Outcome = "stopped"
    plans: int = 0
    notes: list[str] = field(default_factory=list)
    ended: float | None = None
    is_heard: bool = False
    """Whether it has reported, and of a heuristic whether it has found anything."""

    def note(self, text: str) -> None:
        """Keep a remark for the report."""
        if len(self.notes) < _NOTES:
            self.notes.append(text[:_NOTE_LENGTH])

    def report(self, now: float) -> CandidateReport:
        """For the result."""
        ended = now if self.ended is None else self.ended
        return CandidateReport(
            name=self.candidate.name,
            objective=self.objective,
            bound=self.bound,
            seconds=round(ended - self.began, 3),
            outcome=self.outcome,
            note="; ".join(self.notes),
            family=self.candidate.family,
        )
