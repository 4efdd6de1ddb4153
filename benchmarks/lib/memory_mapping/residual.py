"""Insertion as a game: what is done with each tensor, in the order of density, by a network or as it is told.

A tensor goes to fast memory in its best way, as insertion has it, or in another way; it is offered again later, or is left out.
The policy of a network of zeros is :func:`~benchmarks.lib.memory_mapping.constructions.quick_insertion`, to the byte.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stowplan.compiled import Floats2D, Ints2D, njit, njit_inner
from stowplan.portfolio.memory_mapping.arrays import Data, Floats, Ints
from stowplan.portfolio.memory_mapping.heuristics import by_density, measure
from stowplan.portfolio.memory_mapping.machine import (
    BEST_FIT,
    WAYS,
    gain,
    insert_best,
    insert_tensor,
    new_state,
    replay,
    way,
)
from stowplan.portfolio.memory_mapping.residencies import settle, take_back
from stowplan.portfolio.memory_mapping.state import COPIED, ENTER, STAY, State

# What is done with a tensor: its best way; the second; the best of all ways that stay only over gaps that are dense enough, by
# two measures; the best of all ways, rare ones too; offered again after a part of all tensors; after all; left out.
BEST, SECOND, DENSE, DENSER, THOROUGH, LATER, LAST, OUT = range(8)
ACTIONS = 8

#: Part of the memory that gaps at least as dense may take, for a tensor to stay over one.
FULL = (1.0, 0.5)

#: Parts of time of which is known what stands in memory, and what waits.
PARTS = 128

#: Part of all tensors that pass before one is offered again.
LATER_PART = 8

#: Numbers that the network sees of a tensor.
STATIC, MOVING = 28, 26
FEATURES = STATIC + MOVING

#: Neurons of each of the two layers.
HIDDEN = 32

# Places of ``Game.cursor``.
AT, HEAD, TAIL, AGAIN, AGAIN_TAIL, RANDOM = range(6)


class Table(NamedTuple):
    """What does not change in a game. N tensors that may gain something, P parts of time."""

    order: Ints
    """[N]: the tensors, the densest first."""
    gains: Floats
    """[N]: what each saves at most (ps)."""
    density: Floats
    """[N]: over capacity and program."""
    size: Floats
    """[N]: over the capacity."""
    begin: Floats
    """[N]: of the first access, in parts of time."""
    end: Floats
    clock: Floats
    """[T + 1]: when boundaries are, in parts of time."""
    price: Floats
    """[P]: the density of the tensor at which memory is full, were all there for all their lives."""
    static: Floats2D
    """[N, STATIC]"""
    over: Floats
    """[A]: part of the memory that gaps as dense as the one before an access, or denser, would take over it in the mean."""
    channel: Floats
    """[A]: part of the channel that copies as worthwhile as that for an access, or more so, would take before it."""
    slow: float
    """Objective of everything in slow memory (ps)."""


class Game(NamedTuple):
    """What changes beside the state."""

    used: Floats
    """[P]: part of the capacity that is taken."""
    waiting: Floats
    """[P]: what tensors not yet offered would take."""
    worth: Floats
    """[P]: their densities times that."""
    copies: Floats
    """[P]: part of the channel that is taken."""
    cursor: Ints
    later: Ints
    """[N]: positions to be offered again after some others, in this order."""
    due: Ints
    """[N]: when."""
    last: Ints
    """[N]: positions to be offered at the end."""
    chosen: Ints
    """[N]: the actions."""
    rows: Floats2D
    """[N, FEATURES]: what the network saw; the first is NaN where it was not asked."""
    scores: Floats2D
    """[N, ACTIONS]: what it said."""
    totals: Ints
    """[WAYS]: objectives of the ways of the tensor at hand; -1 where there is none."""
    hidden: Floats2D
    """[2, HIDDEN]"""


class Network(NamedTuple):
    """Two layers; what it says are differences to the best way."""

    mean: Floats
    scale: Floats
    first: Floats2D
    """[FEATURES, HIDDEN]"""
    first_bias: Floats
    second: Floats2D
    """[HIDDEN, HIDDEN]"""
    second_bias: Floats
    third: Floats2D
    """[HIDDEN, ACTIONS]"""
    third_bias: Floats
    bias: Floats
    """[ACTIONS]: added to what it says."""


def no_network(bias: Floats | None = None) -> Network:
    """Says nothing, so that all is done as insertion does it."""
    z = np.zeros
    return Network(
        z(FEATURES),
        np.ones(FEATURES),
        z((FEATURES, HIDDEN)),
        z(HIDDEN),
        z((HIDDEN, HIDDEN)),
        z(HIDDEN),
        z((HIDDEN, ACTIONS)),
        z(ACTIONS),
        z(ACTIONS) if bias is None else bias,
    )


def new_table(data: Data, by: int = 1) -> Table:
    """Everything that is known of a program's tensors before the first is offered."""
    state = new_state(data)
    tensors = len(data.tensors) - 1
    gains, lifetimes = np.zeros(tensors), np.zeros(tensors)
    measure(data, state, gains, lifetimes)
    order = by_density(data, by)
    clock = state.began.astype(np.float64)
    whole = max(1.0, clock[-1])
    clock *= PARTS / whole
    count = len(order)
    tensors_of: Any = data.tensors
    accesses: Any = data.accesses
    first, last = tensors_of["first_access"][order], tensors_of["first_access"][order + 1] - 1
    size = tensors_of["bytes"][order] / data.capacity
    begin = clock[accesses["low"][first]]
    end = np.maximum(clock[accesses["high"][last]], begin + 1e-6)
    life = (end - begin) / PARTS
    own = gains[order]
    saving = max(1.0, float(gains.sum()))
    density = own / saving / np.maximum(1e-12, size * life)
    price = np.zeros(PARTS)
    filled, waiting, worth = np.zeros(PARTS), np.zeros(PARTS), np.zeros(PARTS)
    static = np.zeros((count, STATIC))
    over, channel = fill_gaps(data, state, clock, whole)
    table = Table(order, own, density, size, begin, end, clock, price, static, over, channel, whole)
    fill_price(table, filled)
    _totals(table, waiting, worth)
    uses = (last - first + 1).astype(np.float64)
    copies_in, copies_out = (tensors_of[name][order].astype(np.float64) for name in ("copy_in", "copy_out"))
    time = life * whole
    demand = waiting
    ratio = np.zeros(count)
    ratio[:-1] = np.log(density[:-1] / np.maximum(density[1:], 1e-30))
    columns = [
        np.log(size + 1e-6),
        np.log(life + 1e-6),
        np.log(uses),
        np.log(density + 1e-9),
        np.arange(count) / max(1, count),
        np.log(own / saving + 1e-9),
        tensors_of["is_input"][order],
        tensors_of["is_output"][order],
        tensors_of["can_copy"][order],
        accesses["defines"][first],
        np.log((copies_in + 1) / (own + 1)),
        np.log((copies_out + 1) / (own + 1)),
        np.log((copies_in + 1) / (time + 1)),
        (begin + end) / 2 / PARTS,
        ratio,
        np.full(count, np.log(demand.max() + 1e-3)),
        np.full(count, np.log(demand.mean() + 1e-3)),
        np.full(count, saving / whole),
        np.full(count, np.log(max(1, count))),
        np.full(count, float(data.stalls_allowed)),
        np.full(count, np.log(size.max(initial=0.0) + 1e-3)),
        np.log((own + 1) / (size * data.capacity + 1)) - np.mean(np.log((own + 1) / (size * data.capacity + 1))),
    ]
    static[:, : len(columns)] = np.stack(columns, axis=1) if count else 0
    gap_features(data, state, table)
    return table


def fill_gaps(data: Data, state: State, clock: Floats, whole: float) -> tuple[Floats, Floats]:
    """See ``Table.over`` and ``Table.channel``."""
    accesses: Any = data.accesses
    tensors: Any = data.tensors
    count = len(accesses) - 1
    gains = np.zeros(count)
    access_gains(data, state, gains)
    of = np.repeat(np.arange(len(tensors) - 1), np.diff(tensors["first_access"]))
    has = np.zeros(count, np.bool_)
    has[1:] = of[1:] == of[:-1]
    before = np.maximum(0, np.arange(count) - 1)
    begin = np.where(has, clock[accesses["low"][before]], 0.0)
    end = np.maximum(clock[accesses["high"][:count]], begin + 1e-6)
    size = tensors["bytes"][of] / data.capacity
    density = (gains + np.where(has, gains[before], 0.0)) / (size * (end - begin))
    over, channel = np.full(count, 99.0), np.full(count, 99.0)
    # An access that overwrites all needs nothing kept.
    kept = has & (size <= 1) & (density > 0) & (accesses["reads"][:count] > 0)
    order = np.flatnonzero(kept)[np.argsort(-density[kept], kind="stable")]
    stack(order, begin, end, size, over, np.zeros(PARTS))
    length = tensors["copy_in"][of] * PARTS / whole
    inner = np.maximum(1e-6, clock[accesses["low"][:count]] - np.where(has, clock[accesses["high"][before]], 0.0))
    copied = (accesses["reads"][:count] > 0) & (size <= 1) & (gains > 0) & (length < inner)
    order = np.flatnonzero(copied)[np.argsort(-(gains / np.maximum(1e-9, length))[copied], kind="stable")]
    stack(order, end - inner, end, np.minimum(1.0, length / inner), channel, np.zeros(PARTS))
    return over, channel


@njit
def access_gains(data: Data, state: State, gains: Floats) -> None:
    """What each access alone would save in the present state."""
    for access in range(len(gains)):
        gains[access] = gain(data, state, access)


@njit
def stack(order: Ints, begin: Floats, end: Floats, amount: Floats, found: Floats, profile: Floats) -> None:
    """Put amounts on each other in an order; the mean height over each when it is put, itself among it."""
    for number in range(len(order)):
        item = order[number]
        spread(profile, begin[item], end[item], amount[item])
        first, last = min(PARTS - 1, int(begin[item])), min(PARTS - 1, int(end[item]))
        total = 0.0
        for part in range(first, last + 1):
            total += max(1e-9, min(end[item], part + 1.0) - max(begin[item], float(part))) * profile[part]
        found[item] = total / max(1e-9, end[item] - begin[item])


@njit
def gap_features(data: Data, state: State, table: Table) -> None:
    """Fill what is static of the gaps of each tensor."""
    for position in range(len(table.order)):
        tensor = table.order[position]
        row = table.static[position]
        first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
        mean = least = most = dense = copied = 0.0
        least = 3.0
        for access in range(first + 1, last):
            value = min(3.0, table.over[access])
            mean += value
            least = min(least, value)
            most = max(most, value)
            if value <= 1.0:
                dense += 1.0
        for access in range(first, last):
            if table.channel[access] <= 1.0:
                copied += 1.0
        gaps = max(1.0, float(last - first - 1))
        row[22] = mean / gaps
        row[23] = least
        row[24] = most
        row[25] = dense / gaps
        row[26] = copied / max(1.0, float(last - first))
        row[27] = 1.0 if last - first > 1 else 0.0


@njit_inner
def permit(data: Data, state: State, table: Table, tensor: int, full: float) -> bool:
    """Let a tensor stay over dense gaps alone; whether that forbids anything."""
    first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
    forbids = False
    for access in range(first, last):
        stays = access + 1 < last and table.over[access + 1] <= full
        came = access > first and table.over[access] <= full
        may = 0
        if stays or (access + 1 < last and not data.accesses[access + 1].reads):
            may |= STAY
        if access == first or stays or came or table.channel[access] <= 1.0:
            may |= ENTER
        if access + 1 < last and may != ENTER | STAY:
            forbids = True
        state.permits[access] = may
    return forbids


@njit_inner
def permit_all(data: Data, state: State, tensor: int) -> None:
    """As it was."""
    for access in range(data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access):
        state.permits[access] = ENTER | STAY


def new_game(table: Table, seed: int = 0) -> Game:
    """Nothing offered yet."""
    count = len(table.order)
    game = Game(
        used=np.zeros(PARTS),
        waiting=np.zeros(PARTS),
        worth=np.zeros(PARTS),
        copies=np.zeros(PARTS),
        cursor=np.zeros(8, np.int64),
        later=np.zeros(count, np.int64),
        due=np.zeros(count, np.int64),
        last=np.zeros(count, np.int64),
        chosen=np.zeros(count, np.int64),
        rows=np.zeros((count, FEATURES)),
        scores=np.zeros((count, ACTIONS)),
        totals=np.zeros(WAYS, np.int64),
        hidden=np.zeros((2, HIDDEN)),
    )
    game.cursor[RANDOM] = 1 + (seed * 2654435761 + 88172645463325252) % ((1 << 31) - 2)
    _totals(table, game.waiting, game.worth)
    return game


@njit_inner
def spread(profile: Floats, begin: float, end: float, amount: float) -> None:
    """Add an amount to the parts of time that [begin, end) touches, by how much of each."""
    first = min(len(profile) - 1, int(begin))
    last = min(len(profile) - 1, int(end))
    for part in range(first, last + 1):
        inside = min(end, part + 1.0) - max(begin, float(part))
        profile[part] += amount * max(0.0, inside)


@njit
def _totals(table: Table, waiting: Floats, worth: Floats) -> None:
    for position in range(len(table.order)):
        spread(waiting, table.begin[position], table.end[position], table.size[position])
        amount = table.size[position] * table.density[position]
        spread(worth, table.begin[position], table.end[position], amount)


@njit
def fill_price(table: Table, filled: Floats) -> None:
    """See ``Table.price``."""
    for position in range(len(table.order)):
        first = min(PARTS - 1, int(table.begin[position]))
        last = min(PARTS - 1, int(table.end[position]))
        spread(filled, table.begin[position], table.end[position], table.size[position])
        for part in range(first, last + 1):
            if filled[part] >= 1.0 and table.price[part] == 0.0:
                table.price[part] = table.density[position]


@njit_inner
def probe(data: Data, state: State, tensor: int, totals: Ints, policy: int, thorough: bool, skip: int) -> int:
    """Objectives of the ways of a tensor, all taken back; the best way that saves, -1 where none does.

    The ways are tried as :func:`~stowplan.portfolio.memory_mapping.machine.insert_best` tries them.
    """
    base = state.totals[0].total
    state.totals[0].insertions += 1
    least = base
    best = -1
    for number in range(WAYS):
        totals[number] = -1
        mode = way(data, tensor, number, thorough)
        if mode < 0:
            continue
        if insert_tensor(data, state, tensor, mode, policy, skip):
            total = replay(data, state)
            totals[number] = total
            take_back(data, state, tensor)
            if total < least:
                least = total
                best = number
    return best


@njit_inner
def second_of(totals: Ints, best: int, base: int) -> int:
    """The best way but one that saves; -1 where there is none."""
    least = base
    found = -1
    for number in range(WAYS):
        if number != best and totals[number] >= 0 and totals[number] < least:
            least = totals[number]
            found = number
    return found


@njit_inner
def commit(data: Data, state: State, table: Table, game: Game, tensor: int, number: int, policy: int, skip: int) -> bool:
    """Put a tensor in one way; False, with nothing done, where that saves nothing."""
    base = state.totals[0].total
    if number >= 0 and insert_tensor(data, state, tensor, way(data, tensor, number, True), policy, skip):
        settle(state, tensor)
        replay(data, state)
        note_residencies(data, state, table, game, tensor)
        return True
    replay(data, state)
    return base > state.totals[0].total


@njit_inner
def note_residencies(data: Data, state: State, table: Table, game: Game, tensor: int) -> None:
    """Count what the residencies of a tensor take of memory and channel."""
    whole = max(1.0, float(state.began[data.horizon])) / PARTS
    index = state.first_slot[tensor]
    while index >= 0:
        slot = state.slots[index]
        begin, end = table.clock[slot.start], table.clock[slot.end]
        spread(game.used, begin, end, float(slot.bytes) / data.capacity)
        if slot.source == COPIED:
            length = data.tensors[tensor].copy_in / whole
            spread(game.copies, begin, min(float(PARTS), begin + max(1e-9, length)), 1.0)
        if slot.out_start >= 0:
            at = table.clock[slot.out_start]
            spread(game.copies, at, min(float(PARTS), at + max(1e-9, data.tensors[tensor].copy_out / whole)), 1.0)
        index = slot.next


@njit_inner
def observe(data: Data, state: State, table: Table, game: Game, position: int, best: int, second: int) -> None:
    """Fill the row of a tensor with what the network sees, after its ways were tried."""
    row = game.rows[position]
    base = float(state.totals[0].total)
    for column in range(STATIC):
        row[column] = table.static[position, column]
    at = STATIC
    own = max(1.0, table.gains[position])
    gained = 0.0
    for number in range(3):
        total = game.totals[number]
        value = -1.0
        if total >= 0:
            value = max(-1.0, min(2.0, (base - total) / own))
        row[at] = value
        row[at + 3] = 1.0 if number == best else 0.0
        if number == best:
            gained = value
        at += 1
    at += 3
    row[at] = gained
    row[at + 1] = 0.0 if second < 0 else max(-1.0, min(2.0, (base - game.totals[second]) / own)) - gained
    row[at + 2] = 1.0 if second >= 0 else 0.0
    at += 3
    begin, end = table.begin[position], table.end[position]
    first, last = min(PARTS - 1, int(begin)), min(PARTS - 1, int(end))
    weight = 0.0
    used = waiting = price = worth = copies = over = free = lost = 0.0
    most_used = most_waiting = most_price = most_over = 0.0
    own_density = max(1e-9, table.density[position] * max(1e-3, gained))
    for part in range(first, last + 1):
        inside = max(1e-6, min(end, part + 1.0) - max(begin, float(part)))
        weight += inside
        room = max(0.0, 1.0 - game.used[part])
        wanted = max(0.0, game.waiting[part])
        dense = max(0.0, game.worth[part]) / max(1e-6, wanted) if wanted > 1e-6 else 0.0
        excess = max(0.0, wanted + table.size[position] - room)
        used += inside * game.used[part]
        waiting += inside * wanted
        price += inside * table.price[part]
        worth += inside * dense
        copies += inside * game.copies[part]
        over += inside * excess
        free += inside * room
        # What those that find no room would have saved, were they as dense as those that wait are in the mean.
        lost += inside * min(excess, table.size[position]) * dense
        most_used = max(most_used, game.used[part])
        most_waiting = max(most_waiting, wanted)
        most_price = max(most_price, table.price[part])
        most_over = max(most_over, excess)
    weight = max(1e-6, weight)
    row[at] = used / weight
    row[at + 1] = most_used
    row[at + 2] = np.log(waiting / weight + 1e-3)
    row[at + 3] = np.log(most_waiting + 1e-3)
    row[at + 4] = max(-5.0, min(5.0, np.log((price / weight + 1e-6) / own_density)))
    row[at + 5] = max(-5.0, min(5.0, np.log((most_price + 1e-6) / own_density)))
    row[at + 6] = max(-5.0, min(5.0, np.log((worth / weight + 1e-6) / own_density)))
    row[at + 7] = min(3.0, copies / weight)
    row[at + 8] = np.log(over / weight + 1e-3)
    row[at + 9] = np.log(most_over + 1e-3)
    row[at + 10] = np.log((table.size[position] + 1e-6) / (free / weight + 1e-2))
    row[at + 11] = min(5.0, lost / weight / (max(1e-9, table.size[position]) * own_density))
    row[at + 12] = base / table.slow
    row[at + 13] = float(state.totals[0].stalled) / max(1.0, base)
    # How much memory was used so far, in the mean.
    mean = 0.0
    for part in range(PARTS):
        mean += game.used[part]
    row[at + 14] = mean / PARTS
    row[at + 15] = float(game.cursor[AGAIN_TAIL]) / len(table.order)
    row[at + 16] = 1.0 if data.tensors[table.order[position]].uniform else 0.0


@njit_inner
def ask(game: Game, net: Network, position: int) -> None:
    """What the network says of the row of a tensor."""
    row = game.rows[position]
    for unit in range(HIDDEN):
        value = net.first_bias[unit]
        for column in range(FEATURES):
            value += (row[column] - net.mean[column]) * net.scale[column] * net.first[column, unit]
        game.hidden[0, unit] = max(0.0, value)
    for unit in range(HIDDEN):
        value = net.second_bias[unit]
        for column in range(HIDDEN):
            value += game.hidden[0, column] * net.second[column, unit]
        game.hidden[1, unit] = max(0.0, value)
    for action in range(ACTIONS):
        value = net.third_bias[action] + net.bias[action]
        for column in range(HIDDEN):
            value += game.hidden[1, column] * net.third[column, action]
        game.scores[position, action] = value


@njit_inner
def random_part(game: Game) -> float:
    """A random number in (0, 1), by Lehmer's generator."""
    game.cursor[RANDOM] = game.cursor[RANDOM] * 48271 % ((1 << 31) - 1)
    return game.cursor[RANDOM] / float((1 << 31) - 1)  # type: ignore[no-any-return]


@njit_inner
def offer(
    data: Data, state: State, table: Table, game: Game, net: Network, position: int, wanted: int, again: bool, heat: float
) -> None:
    """Do with a tensor what is wanted, or what the network says where that is -1."""
    tensor = table.order[position]
    action = wanted
    if again:
        action = BEST
    if action == BEST:
        insert_best(data, state, tensor, BEST_FIT, False, 0, 0)
        note_residencies(data, state, table, game, tensor)
    elif action < 0 or action == SECOND:
        base = state.totals[0].total
        best = probe(data, state, tensor, game.totals, BEST_FIT, False, 0)
        second = second_of(game.totals, best, base)
        if action < 0:
            action = BEST
            # Where nothing saves there is nothing to decide.
            game.rows[position, 0] = np.nan
            if best >= 0:
                total = state.totals[0].total
                state.totals[0].total = base
                observe(data, state, table, game, position, best, second)
                state.totals[0].total = total
                ask(game, net, position)
                highest = game.scores[position, BEST]
                if heat > 0.0:
                    highest -= heat * np.log(-np.log(random_part(game)))
                for other in range(1, ACTIONS):
                    if other == SECOND and second < 0:
                        continue
                    value = game.scores[position, other]
                    if heat > 0.0:
                        value -= heat * np.log(-np.log(random_part(game)))
                    if value > highest:
                        highest = value
                        action = other
        game.chosen[position] = action
        if action == SECOND and second >= 0:
            commit(data, state, table, game, tensor, second, BEST_FIT, 0)
        elif action in (BEST, SECOND):
            commit(data, state, table, game, tensor, best, BEST_FIT, 0)
        else:
            replay(data, state)
    game.chosen[position] = action
    if action in (DENSE, DENSER):
        permit(data, state, table, tensor, FULL[0] if action == DENSE else FULL[1])
        insert_best(data, state, tensor, BEST_FIT, True, 0, 0)
        permit_all(data, state, tensor)
        note_residencies(data, state, table, game, tensor)
    elif action == THOROUGH:
        insert_best(data, state, tensor, BEST_FIT, True, 0, 0)
        note_residencies(data, state, table, game, tensor)
    elif action == LATER:
        game.later[game.cursor[TAIL]] = position
        game.due[game.cursor[TAIL]] = game.cursor[AT] + max(1, len(table.order) // LATER_PART)
        game.cursor[TAIL] += 1
    elif action == LAST:
        game.last[game.cursor[AGAIN_TAIL]] = position
        game.cursor[AGAIN_TAIL] += 1
    if action not in (LATER, LAST):
        amount = -table.size[position]
        spread(game.waiting, table.begin[position], table.end[position], amount)
        spread(game.worth, table.begin[position], table.end[position], amount * table.density[position])


@njit
def play(data: Data, state: State, table: Table, game: Game, net: Network, wanted: Ints, until: int, heat: float) -> None:
    """Offer the tensors up to position ``until``; past the last one, those too that were to be offered again.

    ``wanted`` of shape [N] are the actions, -1 where the network is asked.
    """
    count = len(table.order)
    cursor = game.cursor
    while cursor[AT] < until:
        while cursor[HEAD] < cursor[TAIL] and game.due[cursor[HEAD]] <= cursor[AT]:
            position = game.later[cursor[HEAD]]
            cursor[HEAD] += 1
            _offer_again(data, state, table, game, net, position)
        position = cursor[AT]
        offer(data, state, table, game, net, position, wanted[position], False, heat)
        cursor[AT] += 1
    if until >= count:
        while cursor[HEAD] < cursor[TAIL]:
            position = game.later[cursor[HEAD]]
            cursor[HEAD] += 1
            _offer_again(data, state, table, game, net, position)
        while cursor[AGAIN] < cursor[AGAIN_TAIL]:
            position = game.last[cursor[AGAIN]]
            cursor[AGAIN] += 1
            _offer_again(data, state, table, game, net, position)


@njit_inner
def _offer_again(data: Data, state: State, table: Table, game: Game, net: Network, position: int) -> None:
    before = game.chosen[position]
    offer(data, state, table, game, net, position, BEST, True, 0.0)
    game.chosen[position] = before


@njit_inner
def copy_flat(source: Ints, target: Ints) -> None:
    """Bring what changes to what another has."""
    for cell in range(len(source)):
        target[cell] = source[cell]


@njit_inner
def draw(odds: Floats, random: Ints) -> int:
    """A number, by odds that are summed up."""
    random[0] = random[0] * 48271 % ((1 << 31) - 1)
    wanted = odds[-1] * random[0] / float((1 << 31) - 1)
    low, high = 0, len(odds) - 1
    while low < high:
        middle = (low + high) >> 1
        if odds[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def climb(
    data: Data,
    state: State,
    table: Table,
    game: Game,
    net: Network,
    flat: Ints,
    kept: Ints2D,
    trial_kept: Ints2D,
    actions: Ints,
    trial: Ints,
    where: Floats,
    what: Floats2D,
    mean: float,
    random: Ints,
    best: Ints,
    tries: int,
) -> None:
    """(1+1) search over actions: some are changed, which is kept where it is no worse.

    ``flat`` is all that changes of state and game; ``kept`` of shape [K, cells] the games up to K positions, evenly spread, and
    ``trial_kept`` room for as many. Positions are drawn by the odds ``where`` [N], actions by ``what`` [N, ACTIONS], summed;
    an action that is there already becomes the best way. ``best`` is the objective; it must be known.
    """
    count = len(table.order)
    cuts = len(kept)
    for _ in range(tries):
        for position in range(count):
            trial[position] = actions[position]
        first = count
        changed = 0
        more = True
        while more:
            position = draw(where, random)
            action = draw(what[position], random)
            trial[position] = BEST if actions[position] == action else action
            if trial[position] != actions[position]:
                first = min(first, position)
            changed += 1
            random[0] = random[0] * 48271 % ((1 << 31) - 1)
            more = changed < count and random[0] / float((1 << 31) - 1) > 1.0 / mean
        if first == count:
            continue
        number = cuts - 1
        while count * number // cuts > first:
            number -= 1
        copy_flat(kept[number], flat)
        for later in range(number + 1, cuts):
            play(data, state, table, game, net, trial, count * later // cuts, 0.0)
            copy_flat(flat, trial_kept[later])
        play(data, state, table, game, net, trial, count, 0.0)
        total = state.totals[0].total
        if total <= best[0]:
            best[0] = total
            for position in range(count):
                actions[position] = trial[position]
            for later in range(number + 1, cuts):
                copy_flat(trial_kept[later], kept[later])


@njit
def keep_all(
    data: Data, state: State, table: Table, game: Game, net: Network, flat: Ints, kept: Ints2D, actions: Ints, best: Ints
) -> None:
    """Play a game from ``kept[0]``, its beginning, and fill what :func:`climb` needs."""
    count, cuts = len(table.order), len(kept)
    copy_flat(kept[0], flat)
    for later in range(1, cuts):
        play(data, state, table, game, net, actions, count * later // cuts, 0.0)
        copy_flat(flat, kept[later])
    play(data, state, table, game, net, actions, count, 0.0)
    best[0] = state.totals[0].total
