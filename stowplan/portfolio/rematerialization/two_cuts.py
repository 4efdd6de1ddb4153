"""Drafts of plans from the two cuts about a limit: no program is solved, so that deep graphs have one soon.

The best price of a byte at a moment (:mod:`stowplan.models.rematerialization.cuts`) lies between two cuts: one above the
limit, one within it that costs more. Each says what runs again afterwards, and every such set makes a plan: what these
operators read is kept. Layers that repeat change all at one price, which puts the cuts far apart. What tells them apart falls
into parts that do not read one another, such as one a layer. In between are plans that have some of these by the dearer cut and
the others by the cheaper: as few as make what is live fit, up to the moment. Where these are the first of the order, whose
backward passes come last, most runs again when what is behind them is gone. Where they are spread evenly over it, little runs
again at once: near the least peak there is room for no more.

Where a long chain of cheap operators runs again, such as a residual stream whose summands are kept, all of it runs before its
end is needed first, and what it makes waits. Drafts keep values at places of such chains, so that these run again one piece
after the other (Chen et al. 2016, Training deep nets with sublinear memory cost, section 3). Where what is live behind the
moment stays above the limit all the same, drafts are taken from the cuts about lower limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.moments import first_moments, in_stages, more_moments
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.rematerialization.engine import profile
from stowplan.portfolio.rematerialization.insertion import Insertion


class TwoCutsParameters(Parameters, frozen=True):
    """Parameters of drafts from two cuts."""

    large: int = 1000
    """Operators of a graph from which such a draft is made before all else."""
    most_added: int = 300_000
    """Operators times runs that are added to a draft of a large graph, at most."""
    places: tuple[int, ...] = (1, 2, 3, 5, 7, 11, 15, 23, 31)
    """Places at which chains are kept, one number after the other."""
    misses: int = 2
    """Numbers of places that have not helped after which no more are tried."""
    aims: int = 7
    """Steps from the limit down to the least bytes of the moment."""
    halvings: int = 3
    """Times that the last step is halved."""


PARAMS = parameters(TwoCutsParameters, __name__)


class TwoCuts:
    """Drafts with one moment.

    Parameters
    ----------
    moment
        Operator at whose first run the cuts are.
    """

    def __init__(self, insertion: Insertion, moments: Moments, moment: int):
        self.insertion, self.structure, self.moments, self.moment = insertion, insertion.structure, moments, moment
        past = moments.before[moment] | 1 << moment
        # What must not run behind something that has run.
        self._barred = {first for first, second in self.structure.problem.precedences if past >> second & 1}
        place = self.structure.order.index(moment)
        self._first, self._behind = self.structure.order[:place], self.structure.order[place + 1 :]

    def sequence(self, again: Collection[int]) -> list[int]:
        """The order given, and what runs again after the moment right before it is needed."""
        return in_stages(self.structure, [self.moment], [self._first, {*self._behind, *again} - self._barred])

    def live(self, sequence: Sequence[int]) -> NDArray[np.int64] | None:
        """[runs] live bytes; None where something is read that is not there, or there is no room for so many runs."""
        runs, live, count = np.array(sequence, np.int64), self.insertion.desk.live, len(sequence)
        if count > self.insertion.room or not profile(self.insertion.graph, self.insertion.work, runs, count, live):
            return None
        return live[:count].copy()

    def draft(
        self,
        limit: int,
        is_even: bool,
        should_stop: Callable[[], bool] = lambda: False,
        is_whole: bool = False,
        places: int = 0,
    ) -> list[int]:
        """A sequence between the cuts of the last bound of the moment, within the limit up to the moment, if any is.

        Parts by the dearer cut are spread evenly, or the first. With ``is_whole`` all of it is to be within the limit. At so
        many ``places`` of what runs again values are kept.
        """
        assert self.moments.bracketing_cuts is not None
        low, high = self.moments.bracketing_cuts
        parts = self.parts(low.again ^ high.again)
        most, best, begin, end = len(parts), self.sequence(self.kept(high.again, places)), 0, len(parts)
        while end - begin > 1 and not should_stop():
            count = (begin + end) // 2
            chosen = [at for at in range(most) if (at + 1) * count // most > at * count // most] if is_even else range(count)
            sequence = self.sequence(self.kept(low.again ^ {op for at in chosen for op in parts[at]}, places))
            live = self.live(sequence)
            if live is not None and live[: None if is_whole else sequence.index(self.moment) + 1].max() <= limit:
                best, end = sequence, count
            else:
                begin = count
        return best

    def kept(self, again: Collection[int], places: int) -> Collection[int]:
        """Of what runs again, what still does where values are kept at so many places of it, spread evenly.

        Each place is where the fewest bytes lie between operators before it and behind it, of those near.
        """
        if not places:
            return again
        structure = self.structure
        rows = [op for op in structure.order if op in again]
        number = {op: at for at, op in enumerate(rows)}
        # [storages] the first of ``rows`` behind which each lies, and the last before which it does.
        last = {root: at for at, op in enumerate(rows) for root in self.moments.read[op] if structure.writer[root] in number}
        spans = [(number[structure.writer[root]], end, root) for root, end in last.items()]
        size = np.zeros(len(rows) + 1, np.int64)
        for begin, end, root in spans:
            size[begin] += structure.size[root]
            size[end] -= structure.size[root]
        size = size.cumsum()
        width, less = len(rows) / (places + 1), set(again)
        for middle in (width * (place + 1) for place in range(places)):
            near = [at for at in range(int(middle - width / 2), int(middle + width / 2)) if size[at] > 0]
            at = min(near, key=lambda at: (size[at], abs(at - middle)), default=-1)
            less -= {structure.writer[root] for begin, end, root in spans if begin <= at < end}
        return self._needed(less)

    def _needed(self, again: Collection[int]) -> set[int]:
        """Of what may run again, what others behind the moment need."""
        structure, needed = self.structure, set[int]()
        wanted = {writer for op in (self.moment, *self._behind) for writer in self._writers(op)}
        for op in reversed(structure.order):
            if op in again and op in wanted:
                needed.add(op)
                wanted.update(self._writers(op))
        return needed

    def _writers(self, op: int) -> list[int]:
        """Operators that make what one reads."""
        structure = self.structure
        return [structure.writer[value] for need in structure.needs[op] for value in (need, structure.root[need])]

    def parts(self, ops: Collection[int]) -> list[list[int]]:
        """Operators by what they read of one another, in the order given."""
        structure = self.structure
        part: dict[int, list[int]] = {}
        for op in structure.order:
            if op not in ops:
                continue
            part[op] = [op]
            for value in structure.needs[op]:
                for writer in (structure.writer[value], structure.writer[structure.root[value]]):
                    small, large = sorted((part[op], part.get(writer, part[op])), key=len)
                    if small is not large:
                        large += small
                        part |= dict.fromkeys(small, large)
        return [*{id(own): own for own in part.values()}.values()]


def drafts(
    insertion: Insertion,
    moments: Moments,
    limit: int,
    on_bound: Callable[[int], None] = lambda bound: None,
    should_stop: Callable[[], bool] = lambda: False,
    first: Sequence[int] | None = None,
    is_thorough: bool = True,
) -> list[list[int]] | None:
    """Sequences that need not be within a limit, the most promising first; None where it is proven that no plan is.

    The first cuts are at the fullest moment; others, as long as bounds rise, where the last draft is most above the limit.

    Parameters
    ----------
    limit
        Bytes.
    on_bound
        Called with every better bound on the added cost.
    first
        The first moment, in place of the fullest.
    is_thorough
        Whether what is above the limit behind the moment is also tried with values kept at places, and by cuts about lower
        limits.
    """
    sequences: list[list[int]] = []
    chain, best = first_moments(insertion.structure, 1) if first is None else [*first], 0
    while chain and not should_stop():
        (moment,) = chain
        bound = moments.added_cost(moment, limit)
        if bound is None:
            return None
        if bound <= best:
            break
        best, chain = bound, []
        on_bound(bound)
        cuts = TwoCuts(insertion, moments, moment)
        for is_even in (True, False):
            sequence = cuts.draft(limit, is_even, should_stop)
            live = cuts.live(sequence)
            if live is not None and sequence not in sequences:
                sequences.append(sequence)
                chain = more_moments(moments, [moment], sequence, live.tolist(), limit, 1)
        whole = within(cuts, limit, should_stop, PARAMS.places if is_thorough else ())
        if is_thorough and not whole:
            whole = below(cuts, limit, should_stop)
        sequences += [sequence for sequence in whole if sequence not in sequences]
        chain = [op for op in chain if op != moment]
    return sequences[::-1]


def within(
    cuts: TwoCuts, limit: int, should_stop: Callable[[], bool] = lambda: False, numbers: Sequence[int] = PARAMS.places
) -> list[list[int]]:
    """Sequences within a limit, each of less cost than those before: a few parts more cost less than runs that are added.

    Values are kept at these numbers of places, one after the other as long as that helps.
    """
    sequences: list[list[int]] = []
    best, misses = 1 << 62, 0
    for places in (0, *numbers):
        if misses == PARAMS.misses or should_stop():
            break
        sequence = cuts.draft(limit, False, should_stop, is_whole=True, places=places)
        live = cuts.live(sequence)
        cost = sum(cuts.structure.cost[op] for op in sequence)
        is_within = live is not None and live.max() <= limit
        if is_within and cost < best:
            best, misses = cost, 0
            sequences.append(sequence)
        elif sequences:
            # What is within no limit yet may be with more places.
            misses += 1
    return sequences


def below(cuts: TwoCuts, limit: int, should_stop: Callable[[], bool] = lambda: False) -> list[list[int]]:
    """Sequences within a limit by cuts about lower ones, where those about the limit leave too much behind the moment.

    The highest such limit is sought: what is live at the moment is then least below what may be.
    """
    moments, moment, found = cuts.moments, cuts.moment, list[list[int]]()

    def drafts_for(aim: int) -> list[list[int]]:
        has_cuts = bool(moments.added_cost(moment, aim)) and moments.bracketing_cuts is not None
        return within(cuts, limit, should_stop) if has_cuts else []

    step = (limit - moments.least_bytes(moment)) // PARAMS.aims
    aims = (limit - at * step for at in range(1, PARAMS.aims) if step > 0)
    for aim in aims:
        found = [] if should_stop() else drafts_for(aim)
        if found:
            break
    for _ in range(PARAMS.halvings if found else 0):
        step //= 2
        nearer = [] if should_stop() else drafts_for(aim + step)
        if nearer:
            aim += step
            found += nearer
    return sorted(found, key=lambda sequence: -sum(cuts.structure.cost[op] for op in sequence))
