"""What every agent is trained by: a base trainer with its files, and the run loop with limits and reports.

A run is a sequence of *iterations* that depend on problems, configuration and seed alone: limits only say when to stop. A
checkpoint is the state at the end of one and holds all that the next needs, so that stopping and resuming change no bit.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from stowplan.arguments import number, whole
from stowplan.errors import InputError
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.checkpoint import FileFormat, PolicyFormat, Provenance

C = TypeVar("C")
P = TypeVar("P")

Outcome = Literal["steps_done", "time_limit", "stopped"]


#: Part of the time that may go into keeping states at the ends of iterations in memory, for a stop within a later one.
KEEP_SHARE = 0.02


class InterruptedIterationError(Exception):
    """An iteration ended early; ``report`` says what it came to, where that is worth a report."""

    def __init__(self, report: Any = None):
        super().__init__("the iteration was interrupted")
        self.report = report


class Allowance:
    """What is left of a run's time, for iterations that take long.

    Parameters
    ----------
    seconds
        From now; None for no limit.
    should_stop
        Asked besides.
    """

    def __init__(
        self,
        seconds: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._seconds, self._should_stop, self._clock = seconds, should_stop, clock
        self._began = clock()

    @property
    def used(self) -> float:
        """Part of the time that is gone, 1 or more where all of it is; 0 where there is no limit."""
        if self._seconds is None:
            return 0.0
        return (self._clock() - self._began) / self._seconds if self._seconds > 0 else 1.0

    @property
    def outcome(self) -> Outcome | None:
        """Why to stop now; None to go on."""
        if self.used >= 1.0:
            return "time_limit"
        return "stopped" if self._should_stop is not None and self._should_stop() else None

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.outcome is not None

    def check(self) -> None:
        """Raise InterruptedIterationError where it is over."""
        if self.is_over():
            raise InterruptedIterationError


class Counts(NamedTuple):
    """What a trainer has done so far, for the provenance of its files."""

    training_steps: int
    games: int
    """Finished episodes."""
    moves: int
    """Decisions in all of them."""


class BaseTrainer(ABC, Generic[C, P]):
    """An agent while it learns: what the run loop asks of it, and its files.

    Parameters
    ----------
    problems
        What to learn on.
    seed
        Of everything random.

    Raises
    ------
    InputError
        There are no problems.
    UsageError
        The seed is none.
    """

    CHECKPOINT: ClassVar[FileFormat[Any]]
    POLICY: ClassVar[PolicyFormat[Any, Any]]
    COLUMNS: ClassVar[tuple[str, ...]]
    """Of the training curve."""

    def __init__(self, problems: Sequence[Any], config: C, *, seed: int = 0, clock: Callable[[], float] = time.monotonic):
        if not problems:
            raise InputError("found no problems to train on, expected at least one")
        self.problems, self.config, self.seed = tuple(problems), config, whole("seed {}", seed, 0)
        self._clock, self._began = clock, clock()
        self.is_whole = True
        """Whether the state is that at the end of an iteration, from which a run can go on."""
        self._kept: bytes | None = None
        """The state at the end of an earlier iteration, as a file."""
        self._keep_from = 0.0

    @property
    def seconds(self) -> float:
        """Of training, earlier runs included."""
        return self._clock() - self._began

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all is learned that was asked for."""

    @property
    @abstractmethod
    def iteration(self) -> int:
        """Reports so far, those of earlier runs included."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """What has been done so far."""

    @property
    def ends_early(self) -> bool:
        """Whether there is not enough left to train for a whole iteration."""
        return False

    def iterate(self, allowance: Allowance | None = None) -> P | None:
        """One iteration; what it came to, None where there is nothing to report.

        Where the allowance is over before its end, it stops soon. What it has found by then counts, for the best plans and the
        policy, but a checkpoint has the state at the end of an earlier iteration, so that a resumed run does it again.
        """
        if self._kept is None or self.ends_early or self._clock() >= self._keep_from:
            self._keep()
        self.is_whole = False
        try:
            report = self._iterate(allowance or Allowance())
        except InterruptedIterationError as interrupted:
            early: P | None = interrupted.report
            return early
        self.is_whole = True
        return report

    @abstractmethod
    def _iterate(self, allowance: Allowance) -> P | None:
        """One iteration; InterruptedIterationError where it ends early."""

    def _keep(self) -> None:
        if self.is_whole:
            began = self._clock()
            self._kept = checkpoint.encoded(self.CHECKPOINT, self.config, self.provenance(), self.state_dict())
            now = self._clock()
            self._keep_from = now + (now - began) / KEEP_SHARE

    @abstractmethod
    def demonstrate(self, number: int, plan: Any) -> None:
        """Learn from a plan of the problem of this number; InputError where it is none to learn from."""

    @abstractmethod
    def plan(self, number: int) -> Any:
        """The best plan found of the problem of this number; None where there is none."""

    @abstractmethod
    def policy_values(self) -> dict[str, Any]:
        """What a policy file holds: the network by itself."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next iteration depends on: tensors and plain values. Agents add theirs."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""
        self._began = self._clock() - float(state["seconds"])

    def provenance(self) -> Provenance:
        """Where the network comes from."""
        return Provenance(
            programs=tuple(problem.name for problem in self.problems),
            digests=tuple(problem.digest for problem in self.problems),
            seed=self.seed,
            seconds=round(self.seconds, 3),
            **self.counts._asdict(),
        )

    def save_policy(self, path: str | Path) -> str:
        """Write the network by itself, to plan with; the file's sha256."""
        return checkpoint.save(path, self.POLICY, self.config, self.provenance(), self.policy_values())

    def save(self, path: str | Path) -> str:
        """Write a checkpoint, which is of the end of an iteration; the file's sha256."""
        self._keep()
        assert self._kept is not None
        return checkpoint.write(path, self._kept)

    @classmethod
    def resume(
        cls, path: str | Path, problems: Sequence[Any], *, changes: Mapping[str, Any] | None = None, **others: Any
    ) -> Self:
        """Go on from a checkpoint.

        Parameters
        ----------
        problems
            Those that it was made with, in their order.
        changes
            Fields of the configuration to change: how long to train, not how.
        others
            Other arguments of the constructor, such as ``clock``.

        Returns
        -------
        BaseTrainer
            As it was when the checkpoint was written.

        Raises
        ------
        InputError
            The file is no checkpoint, is damaged or of another version, or is of other problems.
        """
        content: checkpoint.Content[Any] = checkpoint.load(path, cls.CHECKPOINT)
        provenance = content.provenance
        if [*provenance.digests] != [problem.digest for problem in problems]:
            names = ", ".join(provenance.programs)
            raise InputError(f"made with other problems ({names}), expected the same, in the same order", source=path)
        try:
            config = content.config.changed(**changes) if changes else content.config
            trainer = cls(problems, config, seed=provenance.seed, **others)
            trainer.load_state_dict(content.values)
        except checkpoint.DAMAGE as error:
            raise InputError(f"damaged checkpoint: {error}", source=path) from error
        return trainer


def run(
    agent: BaseTrainer[Any, P],
    *,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    max_reports: int | None = None,
    on_progress: Callable[[P], object] | None = None,
    save: Callable[[], object] | None = None,
    save_every: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train until the agent is done, or a limit stops it.

    Parameters
    ----------
    time_limit
        Seconds from now.
    should_stop
        Asked before each iteration, and within it.
    max_reports
        Stop after so many reports of this run.
    on_progress
        Called with each report.
    save
        Writes a checkpoint: called after reports, at most every ``save_every`` seconds, and at the end.

    Returns
    -------
    Outcome
        ``"steps_done"``, ``"time_limit"`` or ``"stopped"``.

    Raises
    ------
    UsageError
        A limit that is no number, or out of range.
    """
    if time_limit is not None:
        number("a time limit of {} s", time_limit, 0.0)
    number("{} s between two checkpoints", save_every, 0.0)
    allowance = Allowance(time_limit, should_stop, clock)
    saved, reports = clock(), 0
    outcome: Outcome | None = None
    while outcome is None:
        if agent.done:
            outcome = "steps_done"
        elif reports == max_reports:
            outcome = "stopped"
        elif (outcome := allowance.outcome) is None:
            report = agent.iterate(allowance)
            if report is not None:
                reports += 1
                if on_progress is not None:
                    on_progress(report)
                if save is not None and clock() - saved >= save_every:
                    save()
                    saved = clock()
    if save is not None:
        save()
    return outcome
