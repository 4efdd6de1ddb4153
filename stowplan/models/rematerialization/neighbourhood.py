"""Where some operators of a plan run again, and how long their results are retained, as a CP-SAT model; all else stays.

The runs of a sequence stand, without those in which an operator that is *free* runs again. Before each there is a *slot* in
which free operators may run again, in the order of their first runs. Storages of free operators are retained from event to
event: the slots in which they may be made again or read, and the runs that read them. All others live as before, so that a free
operator may read them where they live, and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.rematerialization.structure import Structure

Term = cp_model.IntVar | int


@dataclass
class _Life:
    """A storage of a free operator."""

    writer: int
    first: int
    """Place of the writer's first run, among those that stand."""
    size: int
    events: list[int] = field(default_factory=list)
    """Ascending."""
    used: set[int] = field(default_factory=set)
    """Events at which a run that stands reads it, or at which it is to be there at the end."""
    readers: list[int] = field(default_factory=list)
    """Free operators that read it, by rank."""
    keep: list[cp_model.IntVar] = field(default_factory=list)
    """[events] whether it is retained from the event before, or the first run, up to this one."""

    def after(self, place: int) -> Term:
        """Whether it is retained beyond the slot and the run at a place."""
        at = bisect_left(self.events, place + 1)
        return self.keep[at] if at < len(self.events) else 0

    def at_slot(self, place: int) -> Term:
        """Whether it is there as the slot at a place begins."""
        if place <= self.first:
            return 0
        at = bisect_left(self.events, place)
        return self.keep[at] if at < len(self.events) else 0


class Neighbourhood:
    """The model of a sequence; :meth:`solve` builds it.

    Parameters
    ----------
    limit
        Bytes.
    sequence
        Of a plan within the limit.
    live
        [runs] bytes that are live at each run of it.
    free
        Operators that may run again and write storages.
    """

    def __init__(self, structure: Structure, limit: int, sequence: Sequence[int], live: Sequence[int], free: Sequence[int]):
        self.structure, self.limit, self.sequence = structure, limit, sequence
        self._first: dict[int, int] = {}
        for at, op in enumerate(sequence):
            self._first.setdefault(op, at)
        self.free = sorted(free, key=self._first.__getitem__)
        self._rank = {op: at for at, op in enumerate(self.free)}
        self.model = cp_model.CpModel()
        self.runs: dict[tuple[int, int], cp_model.IntVar] = {}
        self._stand(live)
        self._slots()

    @property
    def size(self) -> int:
        """Number of runs to decide on: the model grows with it and with the operators that are free."""
        return sum(map(len, self.slots.values()))

    def _build(self) -> None:
        self.runs = {(op, place): self.model.new_bool_var(f"{op} at {place}") for op in self.free for place in self.slots[op]}
        for root, life in self.lives.items():
            self._retain(root, life)
        self._fit()
        self.model.minimize(_total([(self.structure.cost[op], run) for (op, _), run in self.runs.items()]))

    # -------------------------------------------------------------------------------------------------- what stands

    def _stand(self, live: Sequence[int]) -> None:
        """What stands; where the storages of others live; and the bytes that they have."""
        structure, own = self.structure, self._rank
        roots = {value for op in self.free for value in structure.writes[op] if structure.parent[value] < 0}
        self.base: list[int] = []
        self._now: dict[int, list[int]] = {op: [] for op in self.free}
        """Slots in which each free operator runs again in the sequence."""
        places = []
        for at, op in enumerate(self.sequence):
            if op in own and self._first[op] != at:
                self._now[op].append(len(self.base))
            else:
                self.base.append(op)
                places.append(at)
        count = len(self.sequence)
        newest: dict[int, int] = {}
        spans: list[list[int]] = []
        """Of every instance: its storage, its first and its last run."""
        for value, writer in enumerate(structure.writer):
            if writer < 0:
                newest[value] = len(spans)
                spans.append([value, -1, -1])
        taken: list[tuple[int, int]] = []
        for at, op in enumerate(self.sequence):
            for value in structure.needs[op]:
                spans[newest[value]][2] = at
            taken += [(newest[value], at) for value in structure.pairs[op]]
            for value in structure.writes[op]:
                if structure.parent[value] < 0:
                    newest[value] = len(spans)
                    spans.append([value, at, at])
                else:
                    newest[value] = newest[structure.parent[value]]
                    spans[newest[value]][2] = max(at, spans[newest[value]][2])
        for value, kept in enumerate(structure.kept):
            if kept:
                spans[newest[value]][2] = count
        change, beyond = [0] * (count + 2), [0] * (count + 2)
        self._there: dict[int, list[tuple[int, int]]] = {}
        """Of storages of others: from behind which run up to which each instance lives."""
        for value, begin, end in spans:
            if value in roots:
                change[begin] += structure.size[value]
                change[min(end, count) + 1] -= structure.size[value]
            elif end > begin:
                self._there.setdefault(value, []).append((begin, end))
                beyond[begin + 1] += structure.size[value]
                beyond[end + 1] -= structure.size[value]
        for instance, at in taken:
            value, _, end = spans[instance]
            if end == at and value in roots:
                change[at] -= structure.size[value]
                change[at + 1] += structure.size[value]
        for table in (change, beyond):
            for at in range(1, len(table)):
                table[at] += table[at - 1]
        self._load = [live[at] - change[at] for at in places]
        """[what stands] bytes of others at each run."""
        # Behind a run live those whose first run is no later and whose last one is.
        self._before = [-1, *places]
        self._crossing = [beyond[at + 1] for at in self._before]
        """[slots] bytes of others in each."""
        self.lives = {}
        place_of = {op: at for at, op in reversed([*enumerate(self.base)])}
        for root in sorted(roots):
            self.lives[root] = _Life(structure.writer[root], place_of[structure.writer[root]], structure.size[root])

    def _is_there(self, root: int, slot: int) -> bool:
        behind = self._before[slot]
        return any(begin <= behind < end for begin, end in self._there.get(root, ()))

    def _slots(self) -> None:
        """Where each free operator may run again: before what reads what it writes, as far as what it reads can be there."""
        structure, end = self.structure, len(self.base)
        for place, op in enumerate(self.base):
            for root in {structure.root[value] for value in structure.needs[op]}:
                if root in self.lives:
                    self.lives[root].used.add(place)
        for value, kept in enumerate(structure.kept):
            if kept and structure.root[value] in self.lives:
                self.lives[structure.root[value]].used.add(end)
        reads = {op: {structure.root[value] for value in structure.needs[op]} for op in self.free}
        for op in self.free:
            for root in reads[op] & self.lives.keys():
                self.lives[root].readers.append(op)
        self.slots: dict[int, list[int]] = {}
        barred = dict.fromkeys(self.free, end + 1)
        for first, second in structure.problem.precedences:
            if first in barred:
                barred[first] = min(barred[first], self.base.index(second))
        for op in reversed(self.free):
            found = set(self._now[op])
            for root in (value for value in structure.writes[op] if value in self.lives):
                life = self.lives[root]
                found |= life.used
                for reader in life.readers:
                    found |= {*self.slots[reader]}
            others = reads[op] - self.lives.keys()
            first = self.base.index(op)
            self.slots[op] = [
                place
                for place in sorted(found)
                if first < place <= barred[op] and all(self._is_there(root, place) for root in others)
            ]

    # -------------------------------------------------------------------------------------------------- constraints

    def _retain(self, root: int, life: _Life) -> None:
        model = self.model
        events = {*life.used, *self.slots[life.writer]}
        for reader in life.readers:
            events |= {*self.slots[reader]}
        life.events = sorted(place for place in events if place > life.first)
        life.used = {place for place in life.used if place > life.first}
        life.keep = [model.new_bool_var(f"{root} up to {place}") for place in life.events]
        before: list[cp_model.IntVar] | None = None
        for place, keep in zip(life.events, life.keep, strict=True):
            if before is not None:
                model.add_bool_or([*before, ~keep])
            made = self.runs.get((life.writer, place))
            before = [keep] if made is None else [keep, made]
            if place in life.used:
                model.add_bool_or(before)
            for reader in life.readers:
                if (reader, place) in self.runs:
                    model.add_bool_or([*before, ~self.runs[reader, place]])

    def _fit(self) -> None:
        """No more is live than the limit: at what stands, and in the slots."""
        structure = self.structure
        most = sum(life.size for life in self.lives.values())
        rows: dict[tuple[tuple[int, int], ...], tuple[int, list[tuple[int, cp_model.IntVar]]]] = {}
        for place, op in enumerate(self.base):
            if self._load[place] + most <= self.limit:
                continue
            room, terms = self.limit - self._load[place], []
            replaced = {structure.root[value] for value in structure.pairs[op]}
            for root, life in self.lives.items():
                if place < life.first:
                    continue
                is_read = place == life.first or (place in life.used and root not in replaced)
                is_there: Term = 1 if is_read else life.after(place)
                if isinstance(is_there, int):
                    room -= is_there * life.size
                else:
                    terms.append((life.size, is_there))
            key = tuple((size, variable.index) for size, variable in terms)
            if key not in rows or room < rows[key][0]:
                rows[key] = room, terms
        for room, terms in rows.values():
            self.model.add(_total(terms) <= room)
        for (op, place), run in self.runs.items():
            if self._crossing[place] + most > self.limit:
                self._fit_slot(op, place, run)

    def _fit_slot(self, op: int, place: int, run: cp_model.IntVar) -> None:
        room = self.limit - self._crossing[place]
        terms: list[tuple[int, cp_model.IntVar]] = []
        for life in self.lives.values():
            is_there: Term
            if life.writer == op:
                is_there = 1
            elif self._rank[life.writer] > self._rank[op]:
                is_there = life.at_slot(place)
            elif place <= life.first:
                is_there = 0
            elif place in life.used:
                is_there = 1
            else:
                later = [
                    self.runs[reader, place]
                    for reader in life.readers
                    if self._rank[reader] >= self._rank[op] and (reader, place) in self.runs
                ]
                after = life.after(place)
                is_there = after
                if later:
                    is_there = self.model.new_bool_var("")
                    for reason in [*later, *([] if isinstance(after, int) else [after])]:
                        self.model.add_implication(reason, is_there)
            if isinstance(is_there, int):
                room -= is_there * life.size
            else:
                terms.append((life.size, is_there))
        self.model.add(_total(terms) <= room).only_enforce_if(run)

    # ------------------------------------------------------------------------------------------------------- solution

    def solve(
        self, *, time_limit: float, deterministic_limit: float | None, seed: int, should_stop: Callable[[], bool]
    ) -> tuple[list[int] | None, bool]:
        """A sequence, which is to be verified, and whether the model was solved to its end; None where nothing was found."""
        self._build()
        hint = [(run, int(place in self._now[op])) for (op, place), run in self.runs.items()]
        cpsat_runner.add_hint(self.model, hint, complete=False)
        found = cpsat_runner.run(
            self.model, time_limit=time_limit, deterministic_limit=deterministic_limit, seed=seed, should_stop=should_stop
        )
        is_solved = found.status in ("optimal", "infeasible")
        if not found.is_found:
            return None, is_solved
        again: dict[int, list[int]] = {}
        for (op, place), run in self.runs.items():
            if found.value(run):
                again.setdefault(place, []).append(op)
        return self._sequence(again), is_solved

    def _sequence(self, again: dict[int, list[int]]) -> list[int]:
        """What stands and what runs again; views are made anew of storages that are."""
        structure = self.structure
        sequence: list[int] = []
        made: dict[int, int] = {}
        """Of each storage of a free operator, and of its views: how often it had been made."""

        def run(op: int) -> None:
            for value in structure.needs[op]:
                root, writer = structure.root[value], structure.writer[value]
                if root in self.lives and value != root and made.get(value, 0) < made.get(root, 0):
                    run(writer)
            sequence.append(op)
            for value in structure.writes[op]:
                root = structure.root[value]
                if root in self.lives:
                    made[value] = made.get(value, 0) + 1 if value == root else made.get(root, 0)

        for place in range(len(self.base) + 1):
            for op in sorted(again.get(place, ()), key=self._rank.__getitem__):
                run(op)
            if place < len(self.base):
                run(self.base[place])
        return sequence


def _total(terms: Sequence[tuple[int, cp_model.IntVar]]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum([variable for _, variable in terms], [size for size, _ in terms])
