"""What a run may still spend, and what to try next with it: a bandit over arms, that between settings and flags, and previews.

Of many settings of a program, tried up to the memory-space assignment, :class:`Search` finds those worth a whole compile.
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

#: Previews that are chosen together: the next ones begin from the best of them.
BATCH = 4

#: Previews that take a compile's time together, about; measured were 9 to 40 of a program's compile.
PREVIEWS_OF_A_COMPILE = 20

#: Compiles' worth of time between two compiles of settings, that one included: the rest goes to previews.
ROUND = 1.6

#: Settings that one way proposes for a batch.
_FORMS = 2

#: Previews that are predicted anew when a compile has shown more.
_AGAIN = 16

#: Makes previews of some settings, in their order.
Previewer = Callable[[Sequence[Knobs]], list[Compiled]]


@dataclass
class Budget:
    """The budget of one run, and what is spent of it."""

    compiles: int
    """At most, the default's included."""
    deadline: Deadline
    jobs: int = 1
    """Compiles side by side."""
    compiled: int = 0
    previewed: int = 0

    @property
    def left(self) -> float:
        """In compiles."""
        return self.compiles - self.compiled - self.previewed / PREVIEWS_OF_A_COMPILE

    @property
    def is_open(self) -> bool:
        """Whether there is anything left for a compile, and time."""
        return self.left >= 1 and not self.deadline.expired

    @property
    def side_by_side(self) -> int:
        """Compiles that come next."""
        return max(1, min(self.jobs, int(self.left)))

    @property
    def previews(self) -> int:
        """Previews before them that are within the budget; a few where there are none to choose from."""
        return max(0 if self.previewed else BATCH, round(PREVIEWS_OF_A_COMPILE * (self.left - self.side_by_side)))

    @property
    def previews_of_a_round(self) -> int:
        """Those of which one setting is chosen, so that each of the compiles left has as many."""
        rounds = max(1, round(self.left / ROUND))
        return min(self.previews, max(BATCH, int(PREVIEWS_OF_A_COMPILE * (self.left - rounds) / rounds)))

    @property
    def out_of_time(self) -> str:
        """Why there is no time left."""
        return "cancelled" if self.deadline.was_cancelled else "time_limit"


#: How many tries what an arm is worth before anything is known of it counts for.
PRIOR_TRIES = 2.0
#: Weight of what is not known of an arm against what is, as in UCB1 (Auer, Cesa-Bianchi and Fischer 2002).
_CURIOSITY = 0.35

#: What the best preview, and a flag, are worth before anything is known of them: shares of compiles that were better than the
#: incumbent.
_KNOBS_WORTH, _FLAG_WORTH = 0.6, 0.3
#: How much more that is for a flag for each part of the default's cycles that its preview saves.
_WORTH_OF_A_GAIN = 6.0
#: Part of the default's cycles for which a flag comes before settings, by itself.
_FIRST_GAIN = 0.005
#: Part of what settings save that counts beside flags: it is lost where a flag wins later.
SETTINGS_KEPT = 0.5


@dataclass(eq=False)
class Arm:
    """Something to try again and again, and what it has been worth."""

    name: str
    wins: float
    tries: float = PRIOR_TRIES

    def index(self, total: float) -> float:
        """What it promises, of ``total`` tries of all arms."""
        return self.wins / self.tries + _CURIOSITY * math.sqrt(math.log(max(total, 2.0)) / self.tries)


def by_promise(arms: Iterable[Arm]) -> list[Arm]:
    """Arms, those that promise most first."""
    known = [*arms]
    total = sum(arm.tries for arm in known)
    return sorted(known, key=lambda arm: -arm.index(total))


class FlagToTry(NamedTuple):
    """A flag that may be tried."""

    options: Mapping[str, Option]
    expected: Improvement
    """What it saves of the default's cycles by itself."""
    promised: float
    """What its preview says of that."""
    preview: Compiled | None = None
    """That of the flag alone, where it has been made."""


class Bandit:
    """Settings of the best program, again and again, and flags, each once."""

    def __init__(self) -> None:
        self.knobs = Arm("knobs", PRIOR_TRIES * _KNOBS_WORTH)
        self.flags: dict[Arm, FlagToTry] = {}
        """Those not tried yet."""
        self.knobs_save = 0.0
        """What the first compile of a setting is expected to save of the default's cycles."""
        self._knob_tries = 0

    def add(self, name: str, flag: FlagToTry, worth: float = 0.0) -> None:
        """A flag that may be tried, worth more the more of the default's cycles it is expected to save."""
        self.flags[Arm(name, PRIOR_TRIES * min(_FLAG_WORTH + _WORTH_OF_A_GAIN * worth, 1.0))] = flag

    def learn(self, known: Mapping[str, tuple[float, float]]) -> None:
        """Count wins and tries of earlier programs, by the names of the arms."""
        for arm in (self.knobs, *self.flags):
            wins, tries = known.get(arm.name, (0.0, 0.0))
            arm.wins, arm.tries = arm.wins + wins, arm.tries + tries

    def count(self, arm: Arm, is_better: bool) -> None:
        """A compile of an arm, and whether it was better than all before."""
        arm.tries += 1
        arm.wins += is_better
        self._knob_tries += arm is self.knobs

    def first(self, saved: float) -> list[Arm]:
        """What comes before all else: flags by themselves, which take no previews but their own, the best mean first.

        Before them stand settings, where as much work is expected to save more by these. A flag by itself has to save more than
        settings have ``saved`` already, as a part of the default's cycles.
        """
        flags = {arm: flag.expected for arm, flag in self.flags.items() if flag.expected.saved >= _FIRST_GAIN + saved}
        first = sorted(flags, key=lambda arm: -flags[arm].mean)
        knobs_save = SETTINGS_KEPT / ROUND * self.knobs_save / (1 + self._knob_tries)
        is_behind = any(expected.saved >= knobs_save for expected in flags.values())
        return first if is_behind or not first else [self.knobs, *first]

    def order(self, first: list[Arm], count: int) -> list[Arm]:
        """Arms to choose ``count`` compiles from, ``first`` and then by promise.

        Few at a time: each of them takes previews.
        """
        arms = [*first, *(arm for arm in by_promise([self.knobs, *self.flags]) if arm not in first)]
        return arms[: max(arms.index(self.knobs), count) + 1]


class Search:
    """Settings of one program.

    Parameters
    ----------
    evidence
        What its compiles have shown.
    ways
        Ways of setting knobs, each with its arm.
    chance
        Of what is chosen by lot.
    """

    def __init__(self, evidence: Evidence, ways: dict[Arm, Way], chance: random.Random):
        self.evidence = evidence
        self._ways = ways
        self._chance = chance
        self._tried: set[Knobs] = set()
        self._assignments: set[str] = set()
        self._previewed: list[tuple[Proposal, Trial]] = []
        self.refusals: list[str] = []
        """What the compiler said of settings that it refuses, each once."""

    def preview(self, count: int, make: Previewer, given: Sequence[Proposal] = ()) -> int:
        """Make at most so many previews, those that are given first, the others from the best so far on; how many were made.

        A setting whose assignment is that of another is not looked at again.
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
            for (tried, proposal), compiled in zip(chosen.values(), make([*chosen]), strict=True):
                trial = self.take(proposal, compiled)
                if tried is not None:
                    tried.tries += 1
                    tried.wins += trial is not None and best is not None and trial.score.total < best.score.total
        return made

    def _propose(self, chosen: dict[Knobs, tuple[Arm | None, Proposal]], size: int, best: Trial) -> None:
        """Fill up what is chosen to ``size``, by the ways that promise most."""
        for arm in by_promise(self._ways):
            proposed = self._ways[arm](self.evidence, best, self._chance)
            new = (proposal for proposal in proposed if proposal.knobs not in self._tried and proposal.knobs not in chosen)
            for proposal in islice(new, min(_FORMS, size - len(chosen))):
                chosen[proposal.knobs] = arm, proposal
            if len(chosen) >= size:
                return

    def take(self, proposal: Proposal, compiled: Compiled) -> Trial | None:
        """Note a preview; None where the compiler refuses the setting, or another has its assignment."""
        self._tried.add(proposal.knobs)
        if compiled.error not in ("", *self.refusals):
            self.refusals.append(compiled.error)
        if compiled.error or not self._notes(compiled):
            return None
        trial = self.evidence.preview(proposal.knobs, compiled)
        self._previewed.append((proposal, trial))
        return trial

    def _notes(self, compiled: Compiled) -> bool:
        """Note an assignment; whether it is new."""
        is_new = compiled.assignment_digest not in self._assignments
        self._assignments.add(compiled.assignment_digest)
        return is_new

    def add(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """Take a compile into the evidence, and predict the best previews anew with what it shows."""
        self._notes(compiled)
        trial = self.evidence.add(knobs, compiled)
        self.drop(knobs)
        self._previewed.sort(key=lambda pair: pair[1].score.total)
        again = ((proposal, self.evidence.preview(proposal.knobs, old.compiled)) for proposal, old in self._previewed[:_AGAIN])
        self._previewed[:_AGAIN] = [*again]
        return trial

    def drop(self, knobs: Knobs) -> None:
        """Forget a preview, whose setting has been compiled, whatever came of it."""
        self._tried.add(knobs)
        self._previewed = [pair for pair in self._previewed if pair[0].knobs != knobs]

    @property
    def best(self) -> Trial | None:
        """The best of all compiles and previews that settings can start from."""
        compiled = [self.evidence.incumbent] if self.evidence.trials else []
        return min((*compiled, *(trial for _, trial in self._previewed)), key=lambda trial: trial.score.total, default=None)

    def worth_compiling(self, now: int, optimism: float = 0.0) -> list[Proposal]:
        """Settings with previews, with what they are expected to save of ``now`` cycles.

        The best stand first, or with optimism those that may be best: that part of what a prediction may be off by counts.
        """

        def hoped(pair: tuple[Proposal, Trial]) -> float:
            return pair[1].score.total - optimism * (pair[1].deviation or 0.0)

        ranked = sorted(self._previewed, key=hoped)
        return [proposal._replace(gain=float(now - trial.score.total)) for proposal, trial in ranked]
