"""The budget of a run of ``tune-xla``, the bandit that chooses the next compilations, and the search for settings by previews.

A *knob* is an XLA option that changes how tensors are placed in fast memory, and a *setting* is a value for each knob. A *flag*
is an option that changes the program before tensors are placed. A *preview* is a compilation that ends once memory-space
assignment, XLA's placement of tensors in fast memory, is done. The *default* is the compilation without any of these options,
and the *incumbent* is the best full compilation so far. A *way* is a strategy that proposes settings
(:mod:`stowplan.backends.xla.proposals`).

The choice is a *bandit*: it has several *arms*, and learns from the results of each arm which one to try next. One arm stands
for settings of the best program so far, and there is one for each flag. A try *wins* if its compilation is better than the
incumbent. A *round* is one choice of compilations, with the previews that are made for it. :class:`SettingSearch` previews many
settings of a program and finds those that are worth a full compilation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from stowplan.backends.xla.child import Option
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import Improvement
from stowplan.backends.xla.knobs import Knobs
from stowplan.backends.xla.proposals import Proposal, Way
from stowplan.backends.xla.store import Compiled
from stowplan.deadline import Deadline

#: Number of previews that are chosen together. The next batch starts from the best setting so far.
BATCH = 4

#: Number of previews that take about as long as one full compilation. Measurements gave 9 to 40, depending on the program.
PREVIEWS_OF_A_COMPILE = 20

#: The budget of one round of the search, in units of one full compilation: 1 for the round's compilation, 0.6 for its previews.
ROUND = 1.6

#: Maximum number of settings in a batch that come from one way, so that a batch tries several ways.
_SETTINGS_OF_A_WAY = 2

#: After each compilation, the cycles of this many of the best previews are predicted again, because more cycles are known then.
_PREDICTED_AGAIN = 16

#: A function that makes previews of several settings; returns a preview for each, in the same order.
Previewer = Callable[[Sequence[Knobs]], list[Compiled]]


@dataclass
class Budget:
    """The budget of one run, and how much of it is used."""

    compiles: int
    """The largest number of compilations, including the default."""
    deadline: Deadline
    """When the run must end."""
    jobs: int = 1
    """How many compilations run at the same time."""
    compiled: int = 0
    """How many compilations were made."""
    previewed: int = 0
    """How many previews were made."""

    @property
    def left(self) -> float:
        """The rest of the budget, in compilations; a preview counts as a part of one."""
        return self.compiles - self.compiled - self.previewed / PREVIEWS_OF_A_COMPILE

    @property
    def is_open(self) -> bool:
        """Whether the budget and the time allow another compilation."""
        return self.left >= 1 and not self.deadline.expired

    @property
    def side_by_side(self) -> int:
        """How many compilations run in the next round."""
        return max(1, min(self.jobs, int(self.left)))

    @property
    def previews(self) -> int:
        """How many previews the budget allows if the compilations of the next round are set aside.

        It is at least one batch if no preview was made yet.
        """
        return max(0 if self.previewed else BATCH, round(PREVIEWS_OF_A_COMPILE * (self.left - self.side_by_side)))

    @property
    def previews_of_a_round(self) -> int:
        """How many previews to make in this round, so that all remaining rounds have equally many."""
        rounds = max(1, round(self.left / ROUND))
        return min(self.previews, max(BATCH, int(PREVIEWS_OF_A_COMPILE * (self.left - rounds) / rounds)))

    @property
    def out_of_time(self) -> str:
        """Why there is no time left, as in ``Tuning.stop_reason``: ``cancelled`` or ``time_limit``."""
        return "cancelled" if self.deadline.was_cancelled else "time_limit"


#: The prior win rate of an arm has the weight of this many tries.
PRIOR_TRIES = 2.0
#: Weight of the exploration term of UCB1 (Auer, Cesa-Bianchi and Fischer 2002), which is 1.41 there. With the lower weight,
#: arms that have won often are tried more often.
_EXPLORATION_WEIGHT = 0.35

#: Prior win rates of the arm of settings, which compiles the best preview, and of a flag. A win rate is the share of
#: compilations that were better than the incumbent.
_KNOBS_PRIOR, _FLAG_PRIOR = 0.6, 0.3
#: The prior win rate of a flag increases by this factor times the share of the default's cycles that it is expected to save.
_PRIOR_PER_GAIN = 6.0
#: A flag that is expected to save this share of the default's cycles more than settings have saved already is tried early,
#: without other changes.
_MIN_GAIN_OF_A_FLAG = 0.005
#: When settings are compared with flags, this share of their saving counts. The rest is discounted, because a flag that wins
#: later changes the program, and the settings of the old one are lost.
SETTINGS_KEPT = 0.5


@dataclass(eq=False)
class Arm:
    """An arm of the bandit, with the results of its tries."""

    name: str
    """``knobs`` for settings of the best program, otherwise the name of a flag or of a way."""
    wins: float
    """How many of its tries were better than the incumbent, including the prior."""
    tries: float = PRIOR_TRIES
    """How often it was tried, including the prior."""

    def index(self, total: float) -> float:
        """Returns the upper confidence bound of its win rate after ``total`` tries of all arms."""
        return self.wins / self.tries + _EXPLORATION_WEIGHT * math.sqrt(math.log(max(total, 2.0)) / self.tries)


def by_promise(arms: Iterable[Arm]) -> list[Arm]:
    """Returns the arms in the order of their upper confidence bounds, the highest first."""
    all_arms = [*arms]
    total = sum(arm.tries for arm in all_arms)
    return sorted(all_arms, key=lambda arm: -arm.index(total))


class FlagToTry(NamedTuple):
    """A flag that was not tried yet."""

    options: Mapping[str, Option]
    """The compiler options that it sets."""
    expected: Improvement
    """The share of the default's cycles that the flag alone is expected to save, from its preview and from earlier programs."""
    promised: float
    """The same share, predicted from its preview alone, without results of earlier programs."""
    preview: Compiled | None = None
    """The preview of the flag alone; None if there is none."""


class Bandit:
    """Chooses between settings of the best program, which may be tried many times, and flags, which are tried once each."""

    def __init__(self) -> None:
        self.knobs = Arm("knobs", PRIOR_TRIES * _KNOBS_PRIOR)
        """The arm of settings of the best program."""
        self.flags: dict[Arm, FlagToTry] = {}
        """The flags that were not tried yet."""
        self.knobs_save = 0.0
        """The share of the default's cycles that the first compilation of a setting is expected to save."""
        self._knob_tries = 0
        """How often the arm of settings was tried in this run."""

    def add(self, name: str, flag: FlagToTry, worth: float = 0.0) -> None:
        """Add a flag; ``worth`` is the share of the default's cycles that it is expected to save."""
        self.flags[Arm(name, PRIOR_TRIES * min(_FLAG_PRIOR + _PRIOR_PER_GAIN * worth, 1.0))] = flag

    def learn(self, known: Mapping[str, tuple[float, float]]) -> None:
        """Add wins and tries on earlier programs; ``known`` has (wins, tries) by the name of the arm, or nothing about it."""
        for arm in (self.knobs, *self.flags):
            wins, tries = known.get(arm.name, (0.0, 0.0))
            arm.wins, arm.tries = arm.wins + wins, arm.tries + tries

    def count(self, arm: Arm, is_better: bool) -> None:
        """Count a compilation of an arm; ``is_better`` says whether it was better than the incumbent."""
        arm.tries += 1
        arm.wins += is_better
        self._knob_tries += arm is self.knobs

    def first(self, saved: float) -> list[Arm]:
        """Returns the arms that come before all others: flags that are tried alone, those that may save the most first.

        A flag is tried alone if it is expected to save clearly more than settings have saved already. The arm of settings comes
        before these flags if a compilation of a setting is expected to save more for the same amount of work than any of them.

        Parameters
        ----------
        saved
            Share of the default's cycles that settings have saved.
        """
        flags = {arm: flag.expected for arm, flag in self.flags.items() if flag.expected.saved >= _MIN_GAIN_OF_A_FLAG + saved}
        first = sorted(flags, key=lambda arm: -flags[arm].mean)
        knobs_save = SETTINGS_KEPT / ROUND * self.knobs_save / (1 + self._knob_tries)
        is_behind = any(expected.saved >= knobs_save for expected in flags.values())
        return first if is_behind or not first else [self.knobs, *first]

    def order(self, first: list[Arm], count: int) -> list[Arm]:
        """Returns the arms from which to choose ``count`` compilations: first ``first``, then by upper confidence bounds.

        The list has one arm more than ``count``, and more arms if that is needed to include the arm of settings. All other arms
        are left out, because each arm in the list costs previews.
        """
        arms = [*first, *(arm for arm in by_promise([self.knobs, *self.flags]) if arm not in first)]
        return arms[: max(arms.index(self.knobs), count) + 1]


class SettingSearch:
    """Searches for good settings of one program by previews.

    Parameters
    ----------
    evidence
        Results of the program's compilations.
    ways
        Strategies that propose settings, each with its arm.
    generator
        Source of all random choices.
    """

    def __init__(self, evidence: Evidence, ways: dict[Arm, Way], generator: random.Random):
        self.evidence = evidence
        self._ways = ways
        self._generator = generator
        self._tried: set[Knobs] = set()
        self._assignments: set[str] = set()
        self._previewed: list[tuple[Proposal, Trial]] = []
        self.refusals: list[str] = []
        """The compiler's messages about settings that it refused, without repetitions."""

    def preview(self, count: int, make: Previewer, given: Sequence[Proposal] = ()) -> int:
        """Make previews, first of given settings, then of settings that the ways propose from the best one so far.

        If two settings lead to the same memory-space assignment, the second one is not considered further. Errors of ``make``
        are raised, and InputError or VerificationError if a preview cannot be read or its plan cannot be made valid.

        Parameters
        ----------
        count
            The largest number of previews.
        make
            Makes the previews.
        given
            Settings to preview first.

        Returns
        -------
        int
            How many previews were made.
        """
        made, waiting = 0, [proposal for proposal in given if proposal.knobs not in self._tried]
        while made < count:
            size = min(BATCH, count - made)
            chosen: dict[Knobs, tuple[Arm | None, Proposal]] = {proposal.knobs: (None, proposal) for proposal in waiting[:size]}
            waiting = waiting[size:]
            best = self.best
            if best is not None:
                self._propose(chosen, size, best)
            if not chosen:
                break
            made += len(chosen)
            for (arm, proposal), compiled in zip(chosen.values(), make([*chosen]), strict=True):
                trial = self.take(proposal, compiled)
                if arm is not None:
                    arm.tries += 1
                    arm.wins += trial is not None and best is not None and trial.score.total < best.score.total
        return made

    def _propose(self, chosen: dict[Knobs, tuple[Arm | None, Proposal]], size: int, best: Trial) -> None:
        """Add proposals of the most promising ways until ``size`` settings are chosen."""
        for arm in by_promise(self._ways):
            proposed = self._ways[arm](self.evidence, best, self._generator)
            new = (proposal for proposal in proposed if proposal.knobs not in self._tried and proposal.knobs not in chosen)
            for proposal in islice(new, min(_SETTINGS_OF_A_WAY, size - len(chosen))):
                chosen[proposal.knobs] = arm, proposal
            if len(chosen) >= size:
                return

    def take(self, proposal: Proposal, compiled: Compiled) -> Trial | None:
        """Record a preview, and return it as a trial.

        Returns None if the compiler refused the setting, or if an earlier one led to the same assignment.
        """
        self._tried.add(proposal.knobs)
        if compiled.error not in ("", *self.refusals):
            self.refusals.append(compiled.error)
        if compiled.error or not self._note_assignment(compiled):
            return None
        trial = self.evidence.preview(proposal.knobs, compiled)
        self._previewed.append((proposal, trial))
        return trial

    def _note_assignment(self, compiled: Compiled) -> bool:
        """Record a memory-space assignment; returns whether it is new."""
        is_new = compiled.assignment_digest not in self._assignments
        self._assignments.add(compiled.assignment_digest)
        return is_new

    def add(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """Add a full compilation to the evidence, and predict the cycles of the best previews again with its cycles."""
        self._note_assignment(compiled)
        trial = self.evidence.add(knobs, compiled)
        self.drop(knobs)
        self._previewed.sort(key=lambda pair: pair[1].score.total)
        predicted_again = (
            (proposal, self.evidence.preview(proposal.knobs, old.compiled))
            for proposal, old in self._previewed[:_PREDICTED_AGAIN]
        )
        self._previewed[:_PREDICTED_AGAIN] = [*predicted_again]
        return trial

    def drop(self, knobs: Knobs) -> None:
        """Remove the preview of a setting that has been compiled, successfully or not."""
        self._tried.add(knobs)
        self._previewed = [pair for pair in self._previewed if pair[0].knobs != knobs]

    @property
    def best(self) -> Trial | None:
        """The best compilation or preview; new settings are proposed from it. None if there is none."""
        compiled = [self.evidence.incumbent] if self.evidence.trials else []
        return min((*compiled, *(trial for _, trial in self._previewed)), key=lambda trial: trial.score.total, default=None)

    def worth_compiling(self, incumbent_cycles: int, optimism: float = 0.0) -> list[Proposal]:
        """Returns the previewed settings that are not compiled yet, the best first, with the cycles that each may save.

        Parameters
        ----------
        incumbent_cycles
            Cycles of the incumbent.
        optimism
            Share of the uncertainty of a preview that is subtracted from its cycles when settings are ranked.
        """

        def optimistic_cycles(pair: tuple[Proposal, Trial]) -> float:
            return pair[1].score.total - optimism * (pair[1].deviation or 0.0)

        ranked = sorted(self._previewed, key=optimistic_cycles)
        return [proposal._replace(gain=float(incumbent_cycles - trial.score.total)) for proposal, trial in ranked]
