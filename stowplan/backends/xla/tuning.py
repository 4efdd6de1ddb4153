"""What came of tuning: every compile, the best of them, and the options that make it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan.backends.xla.child import Option
from stowplan.backends.xla.knobs import as_flags
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.document import Document
from stowplan.errors import InputError, brief
from stowplan.tables import text_table

FORMAT = "stowplan.xla.tuning"
VERSION = 1

#: Gains that are farther apart than this are told of.
_DISAGREEMENT = 0.05

#: Characters of a refusal that the summary shows.
_MOST_ERROR = 100


class TrialRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One compile, as it is reported."""

    way: str
    """How its setting was found: default, all_slow, a flag, or a way of the loop."""
    first: int
    last: int
    """Values moved to the front and to the back of XLA's order."""
    steer: str = ""
    """The setting in a few words, empty for XLA's own plan."""
    cycles: int = 0
    """As XLA estimates them."""
    stall_cycles: int = 0
    copy_cycles: int = 0
    """What XLA counts for instructions ``copy``, a part of ``cycles``."""
    careful_copy_cycles: int = 0
    """What those take by bytes over bandwidth."""
    expected_gain: float = 0.0
    """Share of the default's cycles that the setting was expected to save against the incumbent."""
    previews: int = 0
    """Those made before it, all together."""
    error: str = ""
    """Why there is no result: the compiler's message where it refused, shortened."""
    processor_seconds: float = 0.0
    result: str = ""
    """Where the result is, below the folder of results."""

    @property
    def total(self) -> int:
        """Cycles with copies by their bytes, and stalls: what is compared."""
        return self.cycles - self.copy_cycles + self.careful_copy_cycles + self.stall_cycles


class Tuning(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of it. ``gain`` is at least 0: XLA's default is one of the trials."""

    name: str
    target: str
    trials: tuple[TrialRecord, ...]
    best: int
    """Position of the best trial."""
    compiler_options: dict[str, Option]
    """For ``lowered.compile(compiler_options=...)``, the user's own among them; no others where the default is best."""
    stop_reason: str
    """``compiles``, ``time_limit``, ``cancelled``, ``exhausted`` where there was nothing left to try, ``nothing_to_gain`` or
    ``failed``, where a note says why."""
    seconds: float
    processor_seconds: float
    """Of the compiles that were run; those found in the folder cost nothing."""
    compiles_run: int
    previews: int = 0
    """Compiles that ended at the memory-space assignment."""
    notes: tuple[str, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not 0 <= self.best < len(self.trials) or self.trials[0].total <= 0:
            raise InputError(f"found best trial {self.best} of {len(self.trials)}, expected trials, the first with cycles")

    @property
    def default(self) -> TrialRecord:
        """XLA's own plan."""
        return self.trials[0]

    @property
    def gain(self) -> float:
        """Share of the default's cycles and stalls that the best trial saves."""
        return self.gain_of(self.trials[self.best])

    @property
    def gain_as_estimated(self) -> float:
        """The same with copies as XLA counts them, which is not to be believed where it is the larger one."""
        best, default = self.trials[self.best], self.default
        return 1 - (best.cycles + best.stall_cycles) / (default.cycles + default.stall_cycles)

    @property
    def gain_without_copies(self) -> float:
        """The same with no copy counted at all."""
        left = [trial.cycles - trial.copy_cycles + trial.stall_cycles for trial in (self.trials[self.best], self.default)]
        return 1 - left[0] / left[1] if left[1] > 0 else 0.0

    @property
    def disagrees(self) -> bool:
        """Whether what copies count decides more than a twentieth of the default's cycles."""
        return abs(self.gain - self.gain_as_estimated) > _DISAGREEMENT

    @property
    def flags(self) -> str:
        """The options for ``LIBTPU_INIT_ARGS``."""
        return as_flags(self.compiler_options)

    def gain_of(self, trial: TrialRecord) -> float:
        """Share of the default's cycles and stalls that a trial saves; negative where it is worse."""
        return 1 - trial.total / self.default.total

    def compiled(self, folder: str | Path, number: int) -> Compiled:
        """What the compiler made in a trial, from the folder of results that the tuning was run with.

        Raises
        ------
        InputError
            The trial has no result, or the folder lacks it.
        """
        trial = self.trials[number]
        if not trial.result:
            raise InputError(f"found no result of trial {number + 1} ({trial.way}): {trial.error}", source=folder)
        return read_result(Path(folder) / trial.result)

    def summary(self) -> str:
        """A few lines for people, and one for each trial."""
        best = self.trials[self.best]
        reused = len(self.trials) - self.compiles_run
        made = f", {self.previews} previews" if self.previews else ""
        work = f"{self.processor_seconds:.1f} processor seconds{made}" + (f", {reused} compiles found" if reused > 0 else "")
        better = (
            f"{_per_cent(self.gain)} fewer cycles than by XLA's default"
            if self.gain
            else "nothing was better than XLA's default"
        )
        lines = [
            f"{self.name} on {self.target}: {better}",
            f"  default    {_cycles(self.default)}",
            f"  best       {_cycles(best)}  ({best.way}, compile {self.best + 1} of {len(self.trials)})",
            f"  copies     as XLA counts {_signed(self.gain_as_estimated)}, none counted {_signed(self.gain_without_copies)}",
            f"  stopped    by {self.stop_reason} after {self.seconds:.1f} s ({work})",
        ]
        rows = []
        for number, trial in enumerate(self.trials):
            what = _outcome(trial, self.gain_of(trial)) if not trial.error else brief(trial.error, _MOST_ERROR)
            rows.append((str(number + 1), "*" if number == self.best else "", trial.way, what, trial.steer))
        lines += text_table(("compile:r", "", "way", "outcome", "settings"), rows)
        if self.disagrees:
            lines.append("  note       most of what XLA estimates here is of copies, by counts that are not to be believed")
        lines.extend(f"  note       {note}" for note in self.notes)
        return "\n".join(lines)


class TuningProgress(msgspec.Struct, frozen=True):
    """Reported after each compile."""

    seconds: float
    trial: TrialRecord
    number: int
    """Compiles so far, this one included."""
    budget: int
    gain: float
    """Of the best so far."""

    def line(self) -> str:
        """One line for people."""
        trial = self.trial
        what = brief(f"no result: {trial.error}", _MOST_ERROR) if trial.error else _cycles(trial)
        return f"[{self.seconds:6.1f} s] {self.number}/{self.budget} {trial.way}: {what}; best {_signed(self.gain)}"


def _outcome(trial: TrialRecord, gain: float) -> str:
    return f"{_cycles(trial)}  {_signed(gain)}"


def _cycles(trial: TrialRecord) -> str:
    stalled = f" + {trial.stall_cycles:,} stalled" if trial.stall_cycles else ""
    return f"{trial.cycles:,} cycles{stalled}"


def _per_cent(share: float) -> str:
    """With as many decimals as tell it from 0, two at most."""
    return f"{share:.1%}" if share >= 0.0005 or not share else f"{share:.2%}"


def _signed(share: float) -> str:
    return f"{share:+.1%}" if share else "0"
