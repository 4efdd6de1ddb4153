"""The base class of all trainers, with its files, and the run loop with limits and reports.

A run is a sequence of *iterations*, each of which plays episodes and then updates the network. They depend only on problems,
configuration and seed; limits only decide when to stop. A checkpoint contains the complete state at the end of an iteration, so
stopping and resuming do not change a bit of the results. A *report* is a row of the training curve.
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


#: Fraction of the time, about, that is spent on storing the states at the ends of iterations in memory. A stored state is
#: needed if a later iteration is interrupted.
KEEP_SHARE = 0.02


class InterruptedIterationError(Exception):
    """An iteration ended early. ``report`` is the report of its results so far, or None."""

    def __init__(self, report: Any = None):
        super().__init__("the iteration was interrupted")
        self.report = report


class Allowance:
    """The remaining time of a run, for iterations that take long.

    Parameters
    ----------
    seconds
        Time limit from now; None for no limit.
    should_stop
        Another limit: if it returns true, the iteration should stop.
    clock
        A monotonic clock in seconds.
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
        """Fraction of the time that has passed, 1 or more after the limit; 0 without a limit."""
        if self._seconds is None:
            return 0.0
        return (self._clock() - self._began) / self._seconds if self._seconds > 0 else 1.0

    @property
    def outcome(self) -> Outcome | None:
        """The reason to stop now; None to continue."""
        if self.used >= 1.0:
            return "time_limit"
        return "stopped" if self._should_stop is not None and self._should_stop() else None

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.outcome is not None

    def check(self) -> None:
        """Raise InterruptedIterationError if it is time to stop."""
        if self.is_over():
            raise InterruptedIterationError


class Counts(NamedTuple):
    """Counts of the training so far, for the provenance of files
    (:class:`~stowplan.learned_guidance.training.checkpoint.Provenance`)."""

    training_steps: int
    """Number of updates of the network."""
    games: int
    """Number of finished episodes."""
    moves: int
    """Number of decisions in all episodes."""


class BaseTrainer(ABC, Generic[C, P]):
    """An agent in training: the methods that the run loop calls, and its files.

    Parameters
    ----------
    problems
        Problems to learn on.
    config
        Configuration of the training.
    seed
        Seed of all random numbers; 0 or more.
    clock
        A monotonic clock in seconds.

    Raises
    ------
    InputError
        If there are no problems.
    UsageError
        If the seed is not valid.
    """

    CHECKPOINT: ClassVar[FileFormat[Any]]
    """Format of the agent's checkpoints."""
    POLICY: ClassVar[PolicyFormat[Any, Any]]
    """Format of the agent's policy files."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Names of the columns of the training curve."""

    def __init__(self, problems: Sequence[Any], config: C, *, seed: int = 0, clock: Callable[[], float] = time.monotonic):
        if not problems:
            raise InputError("found no problems to train on, expected at least one")
        self.problems, self.config, self.seed = tuple(problems), config, whole("seed {}", seed, 0)
        self._clock, self._began = clock, clock()
        self.is_whole = True
        """Whether the trainer is in the state at the end of an iteration, from which a run can continue."""
        self._stored_state: bytes | None = None
        """The state at the end of an earlier iteration, encoded as a file."""
        self._store_from = 0.0
        """Time of the clock from which on the state may be stored again, so that storing takes few per cent of the time."""

    @property
    def seconds(self) -> float:
        """Seconds of training, including earlier runs."""
        return self._clock() - self._began

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the configured training is complete."""

    @property
    @abstractmethod
    def iteration(self) -> int:
        """Number of reports so far, including earlier runs."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Counts of the training so far."""

    @property
    def ends_early(self) -> bool:
        """Whether too little training is left for a complete iteration."""
        return False

    def iterate(self, allowance: Allowance | None = None) -> P | None:
        """Do one iteration; return its report, or None if there is nothing to report.

        If the allowance runs out, the iteration stops early. Its results so far contribute to the best plans and the policy. A
        checkpoint has the state at the end of an earlier iteration, so that a resumed run repeats the interrupted one.
        """
        if self._stored_state is None or self.ends_early or self._clock() >= self._store_from:
            self._store_state()
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
        """Do one iteration; raise InterruptedIterationError if it ends early."""

    def _store_state(self) -> None:
        """Store the current state in memory, if it is the state at the end of an iteration."""
        if self.is_whole:
            began = self._clock()
            self._stored_state = checkpoint.encoded(self.CHECKPOINT, self.config, self.provenance(), self.state_dict())
            now = self._clock()
            self._store_from = now + (now - began) / KEEP_SHARE

    @abstractmethod
    def demonstrate(self, number: int, plan: Any) -> None:
        """Add a plan of the problem with this number, its position in ``problems``, as a demonstration; raise InputError if it
        is not usable."""

    @abstractmethod
    def plan(self, number: int) -> Any:
        """Return the best plan found for the problem with this number; None if there is none."""

    @abstractmethod
    def policy_values(self) -> dict[str, Any]:
        """Return the values of a policy file, which contain only the network."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next iteration depends on, as tensors and plain values. Subclasses add to it."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raise one of ``checkpoint.DAMAGE`` if it is not valid."""
        self._began = self._clock() - float(state["seconds"])

    def provenance(self) -> Provenance:
        """The provenance of the network."""
        return Provenance(
            programs=tuple(problem.name for problem in self.problems),
            digests=tuple(problem.digest for problem in self.problems),
            seed=self.seed,
            seconds=round(self.seconds, 3),
            **self.counts._asdict(),
        )

    def save_policy(self, path: str | Path) -> str:
        """Write the network as a policy file; return the SHA-256 of the file. Raise InputError if it cannot be written."""
        return checkpoint.save(path, self.POLICY, self.config, self.provenance(), self.policy_values())

    def save(self, path: str | Path) -> str:
        """Write a checkpoint with the state at the end of the last complete iteration that was stored; return the SHA-256 of
        the file. Raise InputError if it cannot be written."""
        self._store_state()
        assert self._stored_state is not None
        return checkpoint.write(path, self._stored_state)

    @classmethod
    def resume(
        cls, path: str | Path, problems: Sequence[Any], *, changes: Mapping[str, Any] | None = None, **others: Any
    ) -> Self:
        """Continue from a checkpoint.

        Parameters
        ----------
        problems
            The problems that the checkpoint was made with, in the same order.
        changes
            Fields of the configuration to change. They may change only the length of training.
        others
            Other arguments of the constructor, such as ``clock``.

        Returns
        -------
        BaseTrainer
            The trainer in the state of the checkpoint.

        Raises
        ------
        InputError
            If the file is not a checkpoint, is damaged or of another version, or belongs to other problems.
        UsageError
            If a value in ``changes`` has a wrong type or is out of range.
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
    """Train until the agent is done or a limit is reached. Errors that the functions below raise are passed on.

    Parameters
    ----------
    agent
        The trainer.
    time_limit
        Time limit in seconds from now; None for no limit.
    should_stop
        Called before and within each iteration; if it returns true, training stops.
    max_reports
        Largest number of reports of this run; None for no limit.
    on_progress
        Called with each report.
    save
        Writes a checkpoint. Called after reports, at most every ``save_every`` seconds, and at the end.
    save_every
        Least number of seconds between two checkpoints.
    clock
        A monotonic clock in seconds.

    Returns
    -------
    Outcome
        ``"steps_done"``: the configured training is complete. ``"time_limit"``: the time was over. ``"stopped"``:
        ``should_stop`` returned true, or there were ``max_reports`` reports.

    Raises
    ------
    UsageError
        If a limit is not a number, or out of range.
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
