"""The result of tuning: all compilations, the best of them, and its compiler options.

A *trial* is one compilation. A *setting* is a choice of compiler options, the *default* is the compilation without any, and the
*incumbent* is the best compilation so far. A *preview* is a compilation that ends right after XLA's memory-space assignment. A
*stall* is time that a program waits for an asynchronous copy. XLA's estimates of the instruction ``copy`` are not reliable;
*corrected* cycles of copies are their bytes divided by the bandwidth.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan.backends.xla.child import Option
from stowplan.backends.xla.knobs import as_flags
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.document import Document
from stowplan.errors import InputError, brief
from stowplan.tables import text_table

#: Values of the fields ``format`` and ``version`` of results of tuning.
FORMAT = "stowplan.xla.tuning"
VERSION = 1

#: The summary warns if the gains with XLA's estimates of copies and with corrected ones differ by more than this share of the
#: default's cycles.
_DISAGREEMENT = 0.05

#: The words of the summary for each reason why a run ended; :attr:`Tuning.stop_reason` explains the reasons.
_STOPPED = {
    "compiles": "as the budget of compilations was used up",
    "time_limit": "at the time limit",
    "cancelled": "by the user",
    "exhausted": "as nothing was left to try",
    "nothing_to_gain": "as there is nothing to gain",
    "failed": "by an error",
}

#: Maximum number of characters of a refusal that the summary shows.
_MOST_ERROR = 100


class TrialRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of one compilation."""

    way: str
    """How its setting was found: ``default``; ``all_slow``, with all values in slow memory; the name of a flag; or the name of
    the strategy that proposed it (:mod:`stowplan.backends.xla.proposals`)."""
    first: int
    """How many values were moved to the front of XLA's order."""
    last: int
    """How many values were moved to the back of XLA's order."""
    steer: str = ""
    """A short description of the setting; empty for XLA's default."""
    cycles: int = 0
    """XLA's estimate of the cycles of all instructions; the cycles of collectives, which XLA does not estimate, are computed
    from bytes. 0 if there is no result."""
    stall_cycles: int = 0
    """Cycles for which the program waits for asynchronous copies, by simulation."""
    copy_cycles: int = 0
    """XLA's estimate for all instructions ``copy``; a part of ``cycles``."""
    careful_copy_cycles: int = 0
    """The cycles of the same copies, computed as bytes divided by bandwidth."""
    expected_gain: float = 0.0
    """Share of the default's cycles that the setting was expected to save compared with the incumbent."""
    previews: int = 0
    """How many previews the run had made before this compilation."""
    error: str = ""
    """Why there is no result, such as the compiler's message, shortened; empty if there is one."""
    processor_seconds: float = 0.0
    """CPU time of the compilation, in seconds."""
    result: str = ""
    """Path of the result inside of the folder of results; empty if there is no result."""

    @property
    def total(self) -> int:
        """The number by which settings are compared: cycles with corrected copies, plus stalls."""
        return self.cycles - self.copy_cycles + self.careful_copy_cycles + self.stall_cycles


class Tuning(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of tuning. ``gain`` is never negative, because XLA's default is one of the trials.

    The constructor raises InputError if there are no trials, if the first one has no cycles, or if ``best`` is none of them.
    """

    name: str
    """Name of the program."""
    target: str
    """Name of the target machine."""
    trials: tuple[TrialRecord, ...]
    """All compilations, XLA's default first."""
    best: int
    """Index of the best trial."""
    compiler_options: dict[str, Option]
    """Options for ``lowered.compile(compiler_options=...)``.

    They include the user's own, and no others if the default is best.
    """
    stop_reason: str
    """Why the run ended: ``compiles`` (the budget was used up), ``time_limit``, ``cancelled``, ``exhausted`` (nothing was left
    to try), ``nothing_to_gain``, or ``failed``, in which case a note gives the reason."""
    seconds: float
    """Seconds of the run."""
    processor_seconds: float
    """CPU time in seconds of the compilations and previews that were run; results that were found in the folder cost
    nothing."""
    compiles_run: int
    """How many compilations were run rather than found in the folder."""
    previews: int = 0
    """How many previews were made or found in the folder."""
    notes: tuple[str, ...] = ()
    """Remarks for users."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not 0 <= self.best < len(self.trials) or self.trials[0].total <= 0:
            raise InputError(f"found best trial {self.best} of {len(self.trials)}, expected trials, the first with cycles")

    @property
    def default(self) -> TrialRecord:
        """The trial with XLA's default options."""
        return self.trials[0]

    @property
    def gain(self) -> float:
        """Share of the default's cycles and stalls that the best trial saves."""
        return self.gain_of(self.trials[self.best])

    @property
    def gain_as_estimated(self) -> float:
        """Share of the default's cycles and stalls that the best trial saves by XLA's own estimates of copies; not reliable if
        it is larger than ``gain``."""
        best, default = self.trials[self.best], self.default
        return 1 - (best.cycles + best.stall_cycles) / (default.cycles + default.stall_cycles)

    @property
    def gain_without_copies(self) -> float:
        """Share of the default's cycles and stalls that the best trial saves if copies do not count."""
        totals = [trial.cycles - trial.copy_cycles + trial.stall_cycles for trial in (self.trials[self.best], self.default)]
        return 1 - totals[0] / totals[1] if totals[1] > 0 else 0.0

    @property
    def disagrees(self) -> bool:
        """Whether the two estimates of copies change the gain by more than 5 % of the default's cycles."""
        return abs(self.gain - self.gain_as_estimated) > _DISAGREEMENT

    @property
    def stopped(self) -> str:
        """Why the run ended, as words that follow *stopped*."""
        return _STOPPED.get(self.stop_reason, self.stop_reason)

    @property
    def flags(self) -> str:
        """The options as text for ``LIBTPU_INIT_ARGS``."""
        return as_flags(self.compiler_options)

    def gain_of(self, trial: TrialRecord) -> float:
        """Returns the share of the default's cycles and stalls that a trial saves; negative if it is worse."""
        return 1 - trial.total / self.default.total

    def compiled(self, folder: str | Path, number: int) -> Compiled:
        """Returns the compilation of a trial, from the folder of results that was used for tuning.

        Parameters
        ----------
        folder
            The folder of results.
        number
            Index of the trial in ``trials``.

        Raises
        ------
        InputError
            The trial has no result, or the folder does not have it.
        """
        trial = self.trials[number]
        if not trial.result:
            raise InputError(f"found no result of trial {number + 1} ({trial.way}): {trial.error}", source=folder)
        return read_result(Path(folder) / trial.result)

    def summary(self) -> str:
        """Returns a summary of a few lines, and a line for each trial."""
        best = self.trials[self.best]
        reused = len(self.trials) - self.compiles_run
        count = f", {self.previews} previews" if self.previews else ""
        work = f"{self.processor_seconds:.1f} processor seconds{count}" + (f", {reused} compiles found" if reused > 0 else "")
        without_gain = "nothing was better than" if len(self.trials) > 1 else "nothing was compiled but"
        better = f"{_per_cent(self.gain)} fewer cycles than by XLA's default" if self.gain else f"{without_gain} XLA's default"
        lines = [
            f"{self.name} on {self.target}: {better}",
            f"  default    {_cycles(self.default)}",
            f"  best       {_cycles(best)}  ({best.way}, compile {self.best + 1} of {len(self.trials)})",
            f"  copies     as XLA counts {_signed(self.gain_as_estimated)}, none counted {_signed(self.gain_without_copies)}",
            f"  stopped    {self.stopped}, after {self.seconds:.1f} s ({work})",
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
    """Progress of a run, reported after each compilation."""

    seconds: float
    """Seconds since the run began."""
    trial: TrialRecord
    """The latest trial."""
    number: int
    """Number of compilations so far, including this one."""
    budget: int
    """The largest number of compilations."""
    gain: float
    """The share of the default's cycles and stalls that the best trial so far saves."""

    def line(self) -> str:
        """Returns the progress in one line."""
        trial = self.trial
        what = brief(f"no result: {trial.error}", _MOST_ERROR) if trial.error else _cycles(trial)
        return f"[{self.seconds:6.1f} s] {self.number}/{self.budget} {trial.way}: {what}; best {_signed(self.gain)}"


def _outcome(trial: TrialRecord, gain: float) -> str:
    """Returns the cycles of a trial and its gain, as text."""
    return f"{_cycles(trial)}  {_signed(gain)}"


def _cycles(trial: TrialRecord) -> str:
    stalled = f" + {trial.stall_cycles:,} stalled" if trial.stall_cycles else ""
    return f"{trial.cycles:,} cycles{stalled}"


def _per_cent(share: float) -> str:
    """Returns a share in per cent, with a second decimal if it would otherwise look like 0."""
    return f"{share:.1%}" if share >= 0.0005 or not share else f"{share:.2%}"


def _signed(share: float) -> str:
    """Returns a share in per cent, with its sign unless it is 0."""
    return f"{share:+.1%}" if share else "0"
