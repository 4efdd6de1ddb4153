"""Drafts of plans from the two minimum cuts that bracket a limit. No MILP is solved, so that deep graphs get a draft soon.

A *draft* is a sequence of runs that may exceed the limit and is *repaired* afterwards, that is, runs are added until it is
within the limit (:mod:`stowplan.portfolio.rematerialization.insertion`). A *moment* is the first run of some operator, mostly
the one with the most live bytes. A *multiplier* is a cost for each byte that is live at the moment. For each multiplier, a
minimum cut (:mod:`stowplan.models.rematerialization.cuts`) gives the operators that should run again after the moment, so that
their results need not be live there. The best multiplier lies between two cuts: a cheap cut that exceeds the limit, and an
expensive cut that is within the limit.

Any set of operators to run again gives a sequence, which keeps the values that these operators read. In a network of equal
layers, all layers switch from one cut to the other at the same multiplier, so that the two cuts are far apart. The operators in
which they differ fall into *parts* that do not read one another, for example one for each layer. Sequences in between use the
expensive cut for some parts and the cheap cut for the others: as few expensive ones as bring the live bytes within the limit up
to the moment. If the expensive parts are the first ones of the order, whose backward passes come last, most operators run again
late, when other values are no longer live. If they are spread evenly over the order, few operators run again at a time, which
suits limits near the least peak.

If a long chain of cheap operators runs again, such as a residual stream whose summands are kept, the whole chain runs before
its end is first needed, and its results stay live. Drafts therefore keep values at some places of such chains, so that the
chain runs again piece by piece (Chen et al. 2016, Training deep nets with sublinear memory cost, section 3). If the live bytes
after the moment still exceed the limit, drafts come from the two cuts of lower limits. The functions raise no errors, except as
stated.
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
    """Number of operators from which on a graph is large, and drafts from two cuts come before all other methods."""
    most_added: int = 300_000
    """Largest number of additions of runs that may repair a draft of a large graph, times the number of operators."""
    places: tuple[int, ...] = (1, 2, 3, 5, 7, 11, 15, 23, 31)
    """Numbers of places at which values of chains are kept, which are tried one after the other."""
    misses: int = 2
    """How many numbers of places are tried without an improvement before no more are tried."""
    aims: int = 7
    """Number of steps into which the range from the limit down to the fewest bytes at the moment is divided, to try lower
    limits."""
    halvings: int = 3
    """How many times the last of these steps is halved, to find the highest lower limit."""


PARAMS = parameters(TwoCutsParameters, __name__)


class TwoCuts:
    """Drafts from the cuts at one moment.

    Parameters
    ----------
    insertion
        Repairs sequences, and has the arrays of the structure.
    moments
        Computes the cuts.
    moment
        The operator at whose first run the cuts are.
    """

    def __init__(self, insertion: Insertion, moments: Moments, moment: int):
        self.insertion, self.structure, self.moments, self.moment = insertion, insertion.structure, moments, moment
        past = moments.before[moment] | 1 << moment
        # These operators must not run again, because an operator that has to come after all of their runs has run.
        self._barred = {first for first, second in self.structure.problem.precedences if past >> second & 1}
        place = self.structure.order.index(moment)
        self._first, self._behind = self.structure.order[:place], self.structure.order[place + 1 :]

    def sequence(self, again: Collection[int]) -> list[int]:
        """The order of the input, in which the operators ``again`` run once more after the moment, right before they are
        needed."""
        return in_stages(self.structure, [self.moment], [self._first, {*self._behind, *again} - self._barred])

    def live(self, sequence: Sequence[int]) -> NDArray[np.int64] | None:
        """[runs] live bytes during each run of a sequence; None if it is not valid, or too long for the arrays."""
        runs, live, count = np.array(sequence, np.int64), self.insertion.search_arrays.live, len(sequence)
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
        """A sequence between the two cuts that ``moments`` has computed last, within the limit up to the moment if possible.

        If it is not possible, the sequence uses the expensive cut alone. Raises AssertionError if no two cuts have been
        computed.

        Parameters
        ----------
        limit
            Limit of the live bytes.
        is_even
            Whether the parts that use the expensive cut are spread evenly over the order; otherwise they are the first ones.
        should_stop
            Function that ends the bisection over the number of these parts.
        is_whole
            Whether the whole sequence has to be within the limit, not only the part up to the moment.
        places
            Number of places of a recomputed chain at which values are kept (:meth:`still_recomputed`).
        """
        assert self.moments.bracketing_cuts is not None
        low, high = self.moments.bracketing_cuts
        parts = self.parts(low.again ^ high.again)
        most, best, begin, end = len(parts), self.sequence(self.still_recomputed(high.again, places)), 0, len(parts)
        while end - begin > 1 and not should_stop():
            count = (begin + end) // 2
            chosen = [at for at in range(most) if (at + 1) * count // most > at * count // most] if is_even else range(count)
            sequence = self.sequence(self.still_recomputed(low.again ^ {op for at in chosen for op in parts[at]}, places))
            live = self.live(sequence)
            if live is not None and live[: None if is_whole else sequence.index(self.moment) + 1].max() <= limit:
                best, end = sequence, count
            else:
                begin = count
        return best

    def still_recomputed(self, again: Collection[int], places: int) -> Collection[int]:
        """The operators of ``again`` that still run again if values are kept at ``places`` places, spread evenly over them.

        A place lies between two of these operators. Around each of the evenly spread places, the place is taken at which the
        fewest bytes, but not none, are passed from operators before it to operators after it. With 0 places, all of ``again``
        still run again.
        """
        if not places:
            return again
        structure = self.structure
        rows = [op for op in structure.order if op in again]
        number = {op: at for at, op in enumerate(rows)}
        # For each storage that is passed between these operators, a span has the row that writes it and the last that reads it.
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
        return self._find_needed(less)

    def _find_needed(self, again: Collection[int]) -> set[int]:
        """The operators of ``again`` whose results are needed after the moment."""
        structure, needed = self.structure, set[int]()
        wanted = {writer for op in (self.moment, *self._behind) for writer in self._writers(op)}
        for op in reversed(structure.order):
            if op in again and op in wanted:
                needed.add(op)
                wanted.update(self._writers(op))
        return needed

    def _writers(self, op: int) -> list[int]:
        """The operators that write the values that an operator reads."""
        structure = self.structure
        return [structure.writer[value] for need in structure.needs[op] for value in (need, structure.root[need])]

    def parts(self, ops: Collection[int]) -> list[list[int]]:
        """The operators ``ops``, grouped into parts that do not read one another, in the order of the input."""
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
    """Make drafts, which need not be within the limit; the most promising draft comes first.

    The first cuts are at the moment with the most live bytes. Each further pair of cuts is at the moment at which the last
    draft exceeds the limit most, as long as the bound rises.

    Parameters
    ----------
    insertion
        Repairs sequences, and has the arrays of the structure.
    moments
        Computes the cuts.
    limit
        Limit of the live bytes.
    on_bound
        Called with every better lower bound of the added cost.
    should_stop
        Function that says whether to end early.
    first
        The first moment, as a list of one operator; by default the one with the most live bytes.
    is_thorough
        Whether to make further drafts: with kept values in chains and, if none of these is within the limit, from the two cuts
        of lower limits.

    Returns
    -------
    list of list of int or None
        The drafts; empty if the cuts prove no added cost, or if the search was stopped at once. None if it is
        proven that no plan is within the limit.
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
        complete_drafts = drafts_within(cuts, limit, should_stop, PARAMS.places if is_thorough else ())
        if is_thorough and not complete_drafts:
            complete_drafts = drafts_by_lower_limits(cuts, limit, should_stop)
        sequences += [sequence for sequence in complete_drafts if sequence not in sequences]
        chain = [op for op in chain if op != moment]
    return sequences[::-1]


def drafts_within(
    cuts: TwoCuts, limit: int, should_stop: Callable[[], bool] = lambda: False, numbers: Sequence[int] = PARAMS.places
) -> list[list[int]]:
    """Sequences within the limit in bytes, each cheaper than those before; empty if none is found.

    They use the expensive cut for a few more parts, which costs less than repairing a draft by adding runs. Values of chains
    are kept at 0 places, and then at the given ``numbers`` of places. The numbers are tried one after the other, as long as
    that helps. Raises AssertionError if the two cuts have not been computed.
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
            # A miss counts only after a first success, because more places may bring a sequence within the limit.
            misses += 1
    return sequences


def drafts_by_lower_limits(cuts: TwoCuts, limit: int, should_stop: Callable[[], bool] = lambda: False) -> list[list[int]]:
    """Sequences within the limit from the two cuts of lower limits, for moments after which too many bytes stay live.

    The search is for the highest lower limit that gives such a sequence, so that the memory at the moment is used as fully as
    possible. The cheapest sequence comes last. The list is empty if no lower limit gives a sequence.
    """
    moments, moment, found = cuts.moments, cuts.moment, list[list[int]]()

    def drafts_for(aim: int) -> list[list[int]]:
        has_cuts = bool(moments.added_cost(moment, aim)) and moments.bracketing_cuts is not None
        return drafts_within(cuts, limit, should_stop) if has_cuts else []

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
