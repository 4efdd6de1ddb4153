"""What all agents are trained with: options, checks before anything is read, and the run with its printer and files."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import typer

from stowplan import files
from stowplan.arguments import number
from stowplan.cli.common import check_folder, check_outputs
from stowplan.cli.output import note
from stowplan.cli.signals import INTERRUPTED as INTERRUPTED
from stowplan.deadline import Deadline, limit_after
from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.learned_guidance.training.curve import CurveFile
from stowplan.learned_guidance.training.run import Agent, run

#: Exit code of a limit that was over before anything was trained.
NOTHING_WITHIN_LIMIT = 3

#: What finding demonstrations may take of a time limit, and the seconds that each has at least.
DEMONSTRATING_SHARE, LEAST_SECONDS = 0.4, 0.2

Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Checkpoint: written now and then, and at the end.")
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="SECONDS", help="Stop after this time, reading included.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, with the same inputs.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin anew though there is a checkpoint.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything random (default 0).")]
StartFrom = Annotated[Path | None, typer.Option("--from", metavar="POLICY", help="Begin with the weights of this policy.")]
Curve = Annotated[
    Path | None, typer.Option("--curve", metavar="FILE", help="Write the training curve here, as CSV, while it grows.")
]
PolicyOutput = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="Write the trained network here, small enough to ship.")
]
Preset = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="Hyperparameters: cpu (the default) or paper.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other hyperparameter, again and again (its page lists them)."),
]
Plans = Annotated[
    Path | None, typer.Option("--plans", metavar="FOLDER", help="Write the best plan of each input here; the folder is made.")
]
Demonstrations = Annotated[
    list[Path] | None,
    typer.Option("--demonstrations", metavar="PLAN", help="Plan of one of the inputs to learn from, again and again."),
]
SaveEvery = Annotated[float, typer.Option("--save-every", metavar="SECONDS", help="Between two checkpoints.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Progress(Protocol):
    """A report of an agent."""

    @property
    def row(self) -> list[str]:
        """Of the training curve."""

    @property
    def line(self) -> str:
        """For people."""


class Trainer(Agent[Progress], Protocol):
    """An agent that is trained from the command line."""

    @property
    def iteration(self) -> int:
        """Reports so far, those of earlier runs included."""

    def save(self, path: str | Path) -> str:
        """Write a checkpoint."""

    def save_policy(self, path: str | Path) -> str:
        """Write the network by itself; the file's sha256."""


class Training(NamedTuple):
    """How a run of a command went."""

    outcome: str
    policy_sha256: str | None
    was_done: bool
    """Nothing was left to do when the command began."""
    moments: tuple[float, float, float]
    """Of the monotonic clock: when the command began, and training began and ended."""

    def remarks(self, done: str, option: str) -> list[str]:
        """Why it ended, where that was not for the caller's limit; and what took time beside training.

        Parameters
        ----------
        done
            What there was to do: ``4000 evaluations``.
        option
            That of the command which asks for more.
        """
        lines = []
        if self.outcome == "steps_done":
            ended = "nothing was left to do: all" if self.was_done else "ended because all"
            lines.append(f"  {ended} {done} are done; --resume with a larger {option} goes on")
        began, started, over = self.moments
        now = time.monotonic()
        lines.append(
            f"  {now - began:.1f} s in all: {started - began:.1f} s to read the input and get ready, "
            f"{over - started:.1f} s to train, {now - over:.1f} s to write the rest"
        )
        return lines


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of a training run that every agent has."""

    output: Path
    time_limit: float | None
    resume: bool
    overwrite: bool
    seed: int | None
    start_from: Path | None
    curve: Path | None
    policy: Path | None
    plans: Path | None
    demonstrations: Sequence[Path]
    demonstrate: float | None
    save_every: float
    quiet: bool

    def check(self, inputs: Iterable[Path | None], fixed: Mapping[str, Any]) -> None:
        """Refuse what cannot work before anything is read; ``fixed``: options that a resumed run cannot change, by name.

        Raises
        ------
        UsageError
            Naming the option or file, and what was expected.
        MissingDependencyError
            If there is no torch.
        """
        if self.time_limit is not None:
            number("--time-limit {}", self.time_limit, 0.0, or_least=False)
        number("--save-every {}", self.save_every, 0.0)
        if self.demonstrate is not None:
            number("--demonstrate {}", self.demonstrate, 0.0, or_least=False)
        if self.plans is not None:
            check_folder(self.plans)
        read = (*inputs, self.start_from, *self.demonstrations)
        check_outputs((self.output, self.curve, self.policy), inputs=read)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite contradict each other")
        if self.resume and not self.output.exists():
            raise UsageError(f"{self.output}: there is no checkpoint to resume")
        if not self.resume and not self.overwrite and self.output.exists():
            raise UsageError(f"{self.output}: exists; --resume goes on from it, --overwrite begins anew")
        given = {
            **fixed,
            "--seed": self.seed,
            "--from": self.start_from,
            "--demonstrations": self.demonstrations or None,
            "--demonstrate": self.demonstrate,
        }
        for name, value in given.items():
            if self.resume and value is not None:
                raise UsageError(f"{name} cannot be changed in a run that is resumed")
        _prepare_torch()

    def within(self, deadline: Deadline, began: float) -> Deadline:
        """A deadline that holds the time limit of a command that ``began`` then, too."""
        return deadline if self.time_limit is None else deadline.within(limit_after(began, self.time_limit))

    def seconds_to_demonstrate(self, deadline: Deadline, left: int) -> float | None:
        """How long to look for the next of so many demonstrations; None where none is asked for, or there is no time."""
        if self.demonstrate is None or deadline.expired:
            return None
        # Most of a time limit, all inputs together, is for training.
        return max(LEAST_SECONDS, min(self.demonstrate, DEMONSTRATING_SHARE * deadline.remaining / left))

    def train(self, trainer: Trainer, columns: Sequence[str], cancel: threading.Event, began: float) -> Training:
        """Train within the limits, and write checkpoint, policy and curve.

        The folder for plans is made before, when all that is read has been read.

        Raises
        ------
        InputError
            The folder cannot be made.
        """
        if self.plans is not None:
            files.make_folder(self.plans)
        was_done, started = trainer.done, time.monotonic()
        curve = None if self.curve is None else CurveFile(self.curve, columns, trainer.iteration)
        with _Printer(self.quiet) as printer:

            def report(progress: Progress) -> None:
                printer.show(progress.line)
                if curve is not None:
                    curve.append(progress.row)

            outcome = run(
                trainer,
                time_limit=None if self.time_limit is None else limit_after(began, self.time_limit),
                should_stop=cancel.is_set,
                on_progress=report,
                save=lambda: trainer.save(self.output),
                save_every=self.save_every,
            )
        ended = time.monotonic()
        digest = None if self.policy is None else trainer.save_policy(self.policy)
        return Training(outcome, digest, was_done, (began, started, ended))


def numbered_plan(folder: Path, number: int) -> Path:
    """Where the best plan of an input goes."""
    return folder / f"{number:03d}.plan.json"


def demonstrated(digests: Sequence[str], digest: str, name: str, path: Path) -> list[int]:
    """Numbers of the inputs whose plan a file holds: the plan of the problem of this digest and name.

    Raises
    ------
    InputError
        It is none of theirs.
    """
    numbers = [number for number, each in enumerate(digests) if each == digest]
    if not numbers:
        raise InputError(f"is a plan of another problem ({name}), expected one of those to train on", source=path)
    return numbers


def _prepare_torch() -> None:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("training needs torch: pip install 'stowplan[learned]'") from error
    # Batches are many and small: with more threads they wait for each other.
    torch.set_num_threads(1)


class _Printer:
    """Progress of training on standard error: one live line on a terminal, plain lines elsewhere."""

    def __init__(self, quiet: bool, every: float = 5.0):
        self._quiet = quiet
        self._every = every
        self._last = -math.inf
        self._status: Any = None

    def __enter__(self) -> _Printer:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("training; no report yet")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, line: str) -> None:
        """Show a report."""
        if self._status is not None:
            self._status.update(line)
        elif not self._quiet and time.monotonic() - self._last >= self._every:
            note(line)
            self._last = time.monotonic()
