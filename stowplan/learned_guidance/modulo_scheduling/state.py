"""A partial mapping of a loop body, which places each instruction on a tile and in a slot; and players, which choose places."""

from __future__ import annotations

import collections.abc
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling import compiled, look_ahead
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.compiled import NONE, State
from stowplan.learned_guidance.modulo_scheduling.look_ahead import allocate_work
from stowplan.models.modulo_scheduling.assemble import list_schedule, make_plan
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Mapping:
    """A partial mapping of a problem at one initiation interval (II).

    The instructions are placed in :attr:`order`, each on a tile and in a slot. The time of an instruction is the earliest clock
    of its slot that the operands allow. If a recurrence, a pin, or the rule ``max_delay`` (the most clocks that a value may
    wait) requires it, instructions that were placed before are delayed by whole IIs, in the same place.

    Parameters
    ----------
    problem
        A problem, or its :class:`Body`, which many mappings can share.
    ii
        Initiation interval in clocks.
    fixed
        (tile, slot) of instructions that are placed at the beginning, by id.
    look_ahead
        Whether the mask excludes places that leave another instruction without a tile, as far as links, siblings and the room
        on tiles show it.

    Raises
    ------
    InputError
        If the II is not between 1 and the depth of the spoke RAM, or if ``fixed`` names an unknown instruction or breaks a
        rule. Also under the conditions that :class:`Body` lists.
    """

    def __init__(
        self,
        problem: Problem | Body,
        ii: int,
        *,
        fixed: collections.abc.Mapping[str, tuple[int, int]] | None = None,
        look_ahead: bool = True,
    ):
        self.body = body = problem if isinstance(problem, Body) else Body(problem)
        self.problem, self.ii, self.look_ahead = body.problem, ii, look_ahead
        machine = self.problem.machine
        if not 1 <= ii <= machine.spoke_depth:
            raise InputError(f"found an initiation interval of {ii}, expected 1 to {machine.spoke_depth}")
        self.order = body.order
        self._ahead = body.ahead(ii) if look_ahead else body.no_ahead
        self._tables = tables = body.tables_at(ii)
        count, groups = body.count, len(body.structure.members)
        longest = np.full((count + 1, count + 1), NONE, np.int64)
        longest[count, count] = 0
        self._state = State(
            tile=np.full(count, -1, np.int64),
            slot=np.full(count, -1, np.int64),
            time=np.full(count, -1, np.int64),
            longest=longest,
            taken=np.zeros((body.tiles, ii), bool),
            results=np.zeros((body.tiles, ii), bool),
            requests=np.zeros((len(tables.port_most), ii), np.int64),
            group_tile=np.full(groups, -1, np.int64),
            open_tiles=np.tile(~np.diag(tables.apart)[:, None], (1, body.tiles)),
            load=np.zeros(body.tiles, np.int64),
            words=np.zeros(body.tiles, np.int64),
            room=compiled.room_for(groups, body.tiles, int(np.diff(tables.first_edge).max(initial=0))),
        )
        self._work = allocate_work(groups, body.tiles)
        self._at = 0
        self._current = -1
        for group, allowed in enumerate(body.structure.allowed):
            if len(allowed) < body.tiles:
                barred = np.ones(body.tiles, bool)
                barred[list(allowed)] = False
                self._state.open_tiles[group, barred] = False
            if len(allowed) == 1:
                compiled.set_group_tile(tables, self._state, group, allowed[0])
        for name, (tile, slot) in (fixed or {}).items():
            self._place_fixed(name, tile, slot)
        self._advance()

    @property
    def tile(self) -> Ints:
        """Tile [N] of each instruction, -1 if it is not placed."""
        return self._state.tile

    @property
    def slot(self) -> Ints:
        """Slot [N] of each instruction, -1 if it is not placed."""
        return self._state.slot

    @property
    def time(self) -> Ints:
        """Issue clock [N] of each instruction, -1 if it is not placed."""
        return self._state.time

    @property
    def current(self) -> int:
        """Index of the instruction to place next, -1 if all are placed."""
        return self._current

    @property
    def ready(self) -> Ints:
        """Earliest issue clock [T] of :attr:`current` on each tile, -1 if the rules of places exclude the tile."""
        return self._ready

    @property
    def placed(self) -> int:
        """Number of placed instructions."""
        return int((self._state.tile >= 0).sum())

    @property
    def stuck(self) -> bool:
        """Whether an instruction is left to place and no place is legal for it."""
        return self._current >= 0 and self._legal == 0

    @property
    def makespan(self) -> int:
        """Clocks until the last result of the placed instructions."""
        tile, time = self._state.tile, self._state.time
        return int(np.where(tile >= 0, time + self._tables.latency, 0).max(initial=0))

    def mask(self) -> Bools:
        """Return the legal places [T, II] of :attr:`current`. The array must not be written to."""
        return self._mask

    def place(self, tile: int, slot: int) -> None:
        """Place :attr:`current`; raise ValueError if the place is not legal, or if all instructions are placed."""
        if self._current < 0:
            raise ValueError("everything is placed")
        if not (0 <= tile < self.body.tiles and 0 <= slot < self.ii and self._mask[tile, slot]):
            name = self.problem.instructions[self._current].id
            raise ValueError(f"found tile {tile}, slot {slot} for {name}, expected a place that the mask allows")
        compiled.place_instruction(
            self._tables, self._state, self._ahead, self._current, self.ii, tile, slot, self.body.max_delay
        )
        self._advance()

    def copy(self) -> Mapping:
        """Return an independent copy."""
        new = object.__new__(Mapping)
        new.__dict__.update(self.__dict__)
        # Mask and ready times can be shared: they are replaced, never written to.
        new._state = State._make(array.copy() for array in self._state)
        return new

    def plan(self, *, list_scheduled: bool = False) -> Plan:
        """Return the plan of a complete mapping.

        Parameters
        ----------
        list_scheduled
            Also compute times by list scheduling, if places determine them, and return the better plan.

        Raises
        ------
        ValueError
            If an instruction is not placed, or values from the asynchronous fabric wait so long that they do not fit.
        """
        if self._current >= 0:
            raise ValueError("found a partial mapping, expected a complete one")
        tiles, times = self._state.tile.tolist(), self._state.time.tolist()
        structure = self.body.structure
        if list_scheduled and self.body.places_decide:
            fixed_times = {number: times[number] for number in structure.slotted}
            rescheduled = list_schedule(structure, self.ii, tiles, fixed_times)
            if rescheduled is not None and self._last_result(rescheduled) < self._last_result(times):
                times = rescheduled
        plan = make_plan(structure, self.ii, tiles, times)
        if plan is None:
            # The mask guarantees room for starts, requests and variables; how long values wait is known only at the end.
            raise ValueError("values from the asynchronous fabric do not fit the tile memories")
        return plan

    def _last_result(self, times: list[int]) -> int:
        """The clock of the last result, if instructions are issued at these times."""
        return max(map(sum, zip(times, self.problem.latencies, strict=True)), default=0)

    def _place_fixed(self, name: str, tile: int, slot: int) -> None:
        """Place an instruction of the argument ``fixed``; raise InputError if that breaks a rule."""
        number = self.problem.number.get(name)
        if number is None:
            raise InputError(f"found {name!r} among the fixed instructions, expected the id of an instruction")
        self._current = number
        self._update_mask()
        if not (0 <= tile < self.body.tiles and 0 <= slot < self.ii and self._mask[tile, slot]):
            raise InputError(
                f"found {name} fixed on tile {tile}, slot {slot}, expected a place that breaks no rule at II {self.ii}"
            )
        compiled.place_instruction(self._tables, self._state, self._ahead, number, self.ii, tile, slot, self.body.max_delay)

    def _advance(self) -> None:
        """Make the next instruction without a place the current one."""
        order, tile = self.order, self._state.tile
        while self._at < len(order) and tile[order[self._at]] >= 0:
            self._at += 1
        self._current = int(order[self._at]) if self._at < len(order) else -1
        self._update_mask()

    def _update_mask(self) -> None:
        """Compute the legal places of the instruction to place."""
        self._mask = np.zeros((self.body.tiles, self.ii), bool)
        self._ready = np.full(self.body.tiles, -1, np.int64)
        self._legal = 0
        if self._current < 0:
            return
        tables, state, number = self._tables, self._state, self._current
        slots, room = min(self.ii, self.problem.machine.instruction_depth), self.body.room
        self._legal = compiled.legal_places(
            tables, state, self._ahead, number, self.ii, slots, room, self.body.max_delay, self._mask, self._ready
        )
        if self.look_ahead and self._legal:
            self._legal = look_ahead.look_ahead(tables, state, int(tables.group[number]), slots, room, self._mask, self._work)


#: Chooses the tile and slot of the next instruction in each of several mappings, none of which is complete or stuck.
Choice: TypeAlias = Callable[[Sequence[Mapping]], Sequence[tuple[int, int]]]


class Player(ABC):
    """Completes many mappings side by side. Each step takes the likeliest place or draws one; no placement is undone.

    If all mappings are of one problem at one interval, a stuck mapping can be replaced by a copy of one that is not stuck.
    Particle filters resample in this way.
    """

    @abstractmethod
    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """Return the function that chooses places for these mappings. It is called with some of them, or with copies. At the
        ``temperature`` 0 it takes the likeliest place; otherwise it draws with ``rng``."""

    def place(
        self,
        mappings: Sequence[Mapping],
        rng: np.random.Generator,
        *,
        temperature: float = 1.0,
        resample: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Mapping]:
        """Place until each mapping is complete or stuck.

        Parameters
        ----------
        mappings
            Any mappings; they are changed in place. With ``resample``, they must be of one problem at one interval, with the
            same number of instructions left.
        temperature
            Temperature of the draws; 0 takes the likeliest place.
        resample
            Whether a stuck mapping is replaced by a copy of one that is not stuck.
        stop
            Called at each step; if it returns true, the mappings are returned as they are.

        Returns
        -------
        list
            As many mappings, in their order, with copies instead of the replaced ones.
        """
        rollouts = list(mappings)
        choose = self.choice(rollouts, rng, temperature) if rollouts else None
        while choose is not None and not stop():
            active = [at for at, mapping in enumerate(rollouts) if mapping.current >= 0 and not mapping.stuck]
            if not active:
                break
            if resample:
                for at, mapping in enumerate(rollouts):
                    if mapping.stuck:
                        rollouts[at] = rollouts[active[int(rng.integers(len(active)))]].copy()
                active = [at for at, mapping in enumerate(rollouts) if mapping.current >= 0]
            for at, place in zip(active, choose([rollouts[at] for at in active]), strict=True):
                rollouts[at].place(*place)
        return rollouts


class Uniform(Player):
    """Draws all legal places with the same probability: the baseline for every policy."""

    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """Return a function that draws legal places; the temperature has no effect."""

        def draw(active: Sequence[Mapping]) -> list[tuple[int, int]]:
            legal = [np.flatnonzero(mapping.mask()) for mapping in active]
            return [divmod(int(at[int(rng.integers(len(at)))]), mapping.ii) for at, mapping in zip(legal, active, strict=True)]

        return draw
