"""Search by previews: of many steers of a program, tried up to the memory-space assignment, those worth a whole compile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice

from stowplan.backends.xla.bandit import BATCH, Arm, by_promise
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.proposals import Proposal, Way
from stowplan.backends.xla.steer import Steer
from stowplan.backends.xla.store import Compiled

#: Steers that one way proposes for a batch.
_FORMS = 2

#: Previews that are predicted anew when a compile has shown more.
_AGAIN = 16

#: Makes previews of some steers, in their order.
Previewer = Callable[[Sequence[Steer]], list[Compiled]]


class Search:
    """Steers of one program.

    Parameters
    ----------
    evidence
        What its compiles have shown.
    ways
        Ways of steering, each with its arm.
    chance
        Of what is chosen by lot.
    """

    def __init__(self, evidence: Evidence, ways: dict[Arm, Way], chance: random.Random):
        self.evidence = evidence
        self._ways = ways
        self._chance = chance
        self._tried: set[Steer] = set()
        self._assignments: set[str] = set()
        self._previewed: list[tuple[Proposal, Trial]] = []
        self.refusals: list[str] = []
        """What the compiler said of steers that it refuses, each once."""

    def preview(self, count: int, make: Previewer, given: Sequence[Proposal] = ()) -> int:
        """Make at most so many previews, those that are given first, the others from the best so far on; how many were made.

        A steer whose assignment is that of another is not looked at again.
        """
        made, waiting = 0, [proposal for proposal in given if proposal.steer not in self._tried]
        while made < count:
            size = min(BATCH, count - made)
            chosen: dict[Steer, tuple[Arm | None, Proposal]] = {proposal.steer: (None, proposal) for proposal in waiting[:size]}
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

    def _propose(self, chosen: dict[Steer, tuple[Arm | None, Proposal]], size: int, best: Trial) -> None:
        """Fill up what is chosen to ``size``, by the ways that promise most."""
        for arm in by_promise(self._ways):
            proposed = self._ways[arm](self.evidence, best, self._chance)
            new = (proposal for proposal in proposed if proposal.steer not in self._tried and proposal.steer not in chosen)
            for proposal in islice(new, min(_FORMS, size - len(chosen))):
                chosen[proposal.steer] = arm, proposal
            if len(chosen) >= size:
                return

    def take(self, proposal: Proposal, compiled: Compiled) -> Trial | None:
        """Note a preview; None where the compiler refuses the steer, or another has its assignment."""
        self._tried.add(proposal.steer)
        if compiled.error not in ("", *self.refusals):
            self.refusals.append(compiled.error)
        if compiled.error or not self._notes(compiled):
            return None
        trial = self.evidence.preview(proposal.steer, compiled)
        self._previewed.append((proposal, trial))
        return trial

    def _notes(self, compiled: Compiled) -> bool:
        """Note an assignment; whether it is new."""
        is_new = compiled.assignment_digest not in self._assignments
        self._assignments.add(compiled.assignment_digest)
        return is_new

    def add(self, steer: Steer, compiled: Compiled) -> Trial:
        """Take a compile into the evidence, and predict the best previews anew with what it shows."""
        self._notes(compiled)
        trial = self.evidence.add(steer, compiled)
        self.drop(steer)
        self._previewed.sort(key=lambda pair: pair[1].score.total)
        again = ((proposal, self.evidence.preview(proposal.steer, old.compiled)) for proposal, old in self._previewed[:_AGAIN])
        self._previewed[:_AGAIN] = [*again]
        return trial

    def drop(self, steer: Steer) -> None:
        """Forget a preview, whose steer has been compiled, whatever came of it."""
        self._tried.add(steer)
        self._previewed = [pair for pair in self._previewed if pair[0].steer != steer]

    @property
    def best(self) -> Trial | None:
        """The best of all compiles and previews that steers can start from."""
        compiled = [self.evidence.incumbent] if self.evidence.trials else []
        return min((*compiled, *(trial for _, trial in self._previewed)), key=lambda trial: trial.score.total, default=None)

    def worth_compiling(self, now: int, optimism: float = 0.0) -> list[Proposal]:
        """Steers with previews, with what they are expected to save of ``now`` cycles.

        The best stand first, or with optimism those that may be best: that part of what a prediction may be off by counts.
        """

        def hoped(pair: tuple[Proposal, Trial]) -> float:
            return pair[1].score.total - optimism * (pair[1].deviation or 0.0)

        ranked = sorted(self._previewed, key=hoped)
        return [proposal._replace(gain=float(now - trial.score.total)) for proposal, trial in ranked]
