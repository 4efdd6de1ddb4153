"""Trained policies that candidates play with: which file, whether it can be had, and what part of a run it may take.

Starting torch takes some seconds of a place that others could use, so a run has a policy of itself only where that is little of
its time or where a place is free; by name it can be had always.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

from stowplan import files
from stowplan.errors import to_install
from stowplan.kernel.candidate import Candidate
from stowplan.kernel.context import Options

T = TypeVar("T")

#: What torch and a policy take to start: seconds, on one core at leisure.
START_SECONDS = 3.0

#: Part of the time that a policy may take from the others, and what it gets by name at most.
POLICY_SHARE, MOST_SHARE = 0.05, 0.5


@cache
def _digest(path: Path, changed_ns: int, size: int) -> str:
    """sha256 of a file, which takes longer than all else that a call does before it looks into the plan cache."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class PolicySource(Generic[T]):
    """Where an agent's policy comes from."""

    file: str
    """The package's own, in ``learned_guidance/checkpoints``."""
    variable: str
    """Environment variable that names another."""
    command: str
    """What trains one."""
    training: str = ""
    """How the package's own was trained, for people."""
    read: Callable[[Path], T] | None = None
    """Imports what plays with it, and reads a file of it."""

    @property
    def path(self) -> Path:
        """The policy to play with; there need be no such file."""
        named = os.environ.get(self.variable)
        return Path(named) if named else Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / self.file))

    @property
    def digest(self) -> str:
        """sha256 of the file."""
        status = self.path.stat()
        return _digest(self.path, status.st_mtime_ns, status.st_size)

    @property
    def described(self) -> str:
        """File and sha256, for the provenance of what follows it."""
        return f"{self.path.name} sha256:{self.digest}"

    def load(self, path: Path | None = None) -> T:
        """The policy in a file, :attr:`path` where none is named; raises InputError where that is no policy or is damaged."""
        import torch

        # Other candidates have the other cores; and sums must not depend on how many there are.
        torch.set_num_threads(1)
        assert self.read is not None
        return self.read(path or self.path)

    def candidate(
        self,
        name: str,
        options: Options,
        others: int,
        *,
        seconds: float,
        unavailable: str = "",
        always: bool = False,
    ) -> Candidate:
        """The learned candidate of a kind; where it cannot run it says why.

        Parameters
        ----------
        name
            Of the candidate.
        others
            How many candidates of other families run.
        seconds
            What it takes once torch has started.
        unavailable
            Why it can do nothing with the problem; empty where it can.
        always
            Whether a run has it of itself whatever it takes, because nothing else has a plan as soon.
        """
        checkpoint = None
        if unavailable:
            pass
        elif find_spec("torch") is None:
            unavailable = f"needs torch: {to_install('learned')}"
        elif not self.path.is_file():
            unavailable = f"found no policy {self.path}: name one in {self.variable}, or train one ({self.command} --help)"
        else:
            files.record_read(self.path)
            checkpoint = self.digest
        share = (START_SECONDS + seconds) / options.time_limit
        by_name_only = not always and others >= options.workers and share > POLICY_SHARE
        # On a busy machine it takes several times as long; it must not be stopped just before its plan.
        share = MOST_SHARE if always else min(share, MOST_SHARE)
        training = "" if os.environ.get(self.variable) else self.training
        return Candidate(
            name,
            "learned",
            share=share,
            by_name_only=by_name_only,
            unavailable=unavailable,
            checkpoint=checkpoint,
            training=training,
        )
