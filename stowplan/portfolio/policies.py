"""Trained policies for learned candidates: which file to load, whether it is available, and which share of a run it may use.

A *policy* is a neural network that gives a probability for each decision of a plan. Its *checkpoint* is the file with its
weights. A *learned candidate* is a method of a run of ``solve`` that makes plans with a policy. Starting torch occupies a
worker process for some seconds in which another candidate could search. By default, a run therefore includes a learned
candidate only if its start and its work take a small part of the time limit, or if a worker would otherwise be idle. A learned
candidate that the user names runs whenever it can.
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

#: Seconds that importing torch and loading a policy take on one idle core.
START_SECONDS = 3.0

#: Parts of the time limit. A learned candidate that needs more than POLICY_SHARE runs only if the user names it, unless a
#: worker is idle. In no case does its share exceed MOST_SHARE.
POLICY_SHARE, MOST_SHARE = 0.05, 0.5


@cache
def _digest(path: Path, changed_ns: int, size: int) -> str:
    """The SHA-256 hash of a file in hexadecimal digits; raises OSError if the file cannot be read.

    It is cached as long as the file's time of change, ``changed_ns`` in nanoseconds, and its size in bytes stay the same.

    Without this cache, hashing would take longer than everything else that a call does before it looks into the plan cache.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class PolicySource(Generic[T]):
    """The source of a learned candidate's policy: the checkpoint in the package, or a file that the user names."""

    file: str
    """Name of the checkpoint that comes with the package, in ``learned_guidance/checkpoints``."""
    variable: str
    """Name of the environment variable with which users name another file."""
    command: str
    """Command that trains a policy, for error messages."""
    training: str = ""
    """How the package's checkpoint was trained, as text for the report; empty if nothing is known."""
    read: Callable[[Path], T] | None = None
    """Function that imports the code of the policy, reads a checkpoint file, and returns the policy. :meth:`load` needs it;
    None if only the other methods are used."""

    @property
    def path(self) -> Path:
        """The file of the policy, which need not exist: the one that :attr:`variable` names, or else the package's."""
        named = os.environ.get(self.variable)
        return Path(named) if named else Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / self.file))

    @property
    def digest(self) -> str:
        """SHA-256 hash of the file, in hexadecimal digits; raises OSError if the file does not exist or cannot be read."""
        status = self.path.stat()
        return _digest(self.path, status.st_mtime_ns, status.st_size)

    @property
    def file_and_digest(self) -> str:
        """File name and SHA-256 hash, for the provenance of plans that the policy led to; raises OSError as :attr:`digest`
        does."""
        return f"{self.path.name} sha256:{self.digest}"

    def load(self, path: Path | None = None) -> T:
        """Load the policy in ``path``, by default :attr:`path`, and limit torch to one thread in this process.

        Raises
        ------
        InputError
            The file cannot be read, is no policy or is damaged.
        ImportError
            torch is not installed.
        """
        import torch

        # The other cores are for other candidates, and floating-point sums must not depend on the number of cores.
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
        """Describe the learned candidate of a kind.

        If it cannot run, because ``unavailable`` says so, torch is not installed or there is no file of the policy, then
        ``Candidate.unavailable`` gives the reason. Raises OSError if the file exists but cannot be read.

        Parameters
        ----------
        name
            Name of the candidate.
        options
            Options of the run, which say how many workers and how much time there are.
        others
            Number of candidates of other families (heuristic, exact) in the run. If there are fewer than workers, a worker
            would be idle without the learned candidate.
        seconds
            Seconds that the candidate needs once torch has started.
        unavailable
            Why the candidate cannot work on this problem; empty if it can.
        always
            Whether to run the candidate by default however long it takes, because no other candidate finds a plan as early.
            Its share is then :data:`MOST_SHARE`.
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
        # With `always`, the share is as large as possible: on a busy machine the candidate takes several times as long, and it
        # must not be stopped just before its first plan.
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
