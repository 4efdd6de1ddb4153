"""Compiled steps of a partial mapping: compute the legal places of an instruction, and place it.

The time of a placed instruction is slot + II * turn, where II is the initiation interval. Its tile and slot are known, so the
*turn*, a number of whole intervals, is the unknown. Each edge between two placed instructions, and each limit on a time, is a
difference constraint ``turn[v] - turn[u] >= weight``. Times exist if and only if no cycle of constraints has a weight above 0.
``longest`` holds the heaviest path between each two placed instructions, so that a further place can be checked, and added,
directly.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Bools2D, Ints2D, njit, njit_inner

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

#: Number of clocks between tiles without a link; it is beyond all limits of times.
FAR = 1 << 30

#: Weight for two instructions that no path of constraints connects.
NONE = -(1 << 50)


class Tables(NamedTuple):
    """Data that placing does not change. There are N instructions, G groups, T tiles and F flows. There are P limits on the
    number of *requests*, accesses to memory, that sets of tiles may make in one slot; if all hold, each request finds a port.
    An *arc* joins two groups if an instruction of one sends values to an instruction of the other over links.

    The instructions of a *group* must be on the same tile. Clocks count from the issue of an instruction.
    """

    hops: Ints2D
    """[T, T] clocks, FAR where there is no link."""
    latency: Ints
    """[N] clocks from issue to result."""
    first_edge: Ints
    """[N + 1] start of the edges of each instruction in the four arrays below."""
    other: Ints
    """Instruction at the other end of an edge; edges from an instruction to itself are left out."""
    distance: Ints
    """Number of iterations by which an edge's consumer is later than its producer."""
    clocks: Ints
    """Clocks of an edge over the asynchronous fabric; -1 for an edge over links, whose clocks depend on the tiles."""
    is_output: Bools
    """Whether the other end is the consumer."""
    group: Ints
    """[N] group of each instruction."""
    size: Ints
    """[G] number of instructions."""
    words: Ints
    """[G] words of tile memory, with the least that values from the asynchronous fabric take at this interval."""
    apart: Bools2D
    """[G, G] whether two groups must be on different tiles; on the diagonal, whether no tile is possible for the group."""
    first_arc: Ints
    """[G + 1] start of the arcs of each group in the two arrays below."""
    arc_other: Ints
    """Group at the other end, in ascending order; twice if values go both ways."""
    arc_is_output: Bools
    """Whether values go to the other group."""
    flow_sources: Bools2D
    """[F, G] groups with an instruction that can start the flow. F is 0 if all sources must be on different tiles anyway."""
    least_time: Ints
    """[N] earliest time, 0 unless pinned."""
    most_time: Ints
    """[N] latest time."""
    pinned_slot: Ints
    """[N] the only slot, also if the time is pinned; -1 for any."""
    fits: Bools
    """[N] whether values that an instruction sends to itself arrive in time, and not too early, at this interval."""
    is_access: Bools
    """[N] whether the instruction makes requests to memory."""
    port_tiles: Bools2D
    """[P, T] tiles whose requests the limit counts."""
    port_most: Ints
    """[P] largest number of requests in a slot."""


class Ahead(NamedTuple):
    """Least clocks between instructions of one recurrence, over paths that may contain instructions not yet placed."""

    with_links: Ints2D
    """[N, N] clocks from issue to issue, with the least clocks of links; below ``NO_PATH / 2`` if there is no path."""
    without: Ints2D
    """[N, N] clocks from issue to issue, without links."""
    clocks: Ints2D
    """[T, T] least clocks from tile to tile over any number of links."""


#: Number of instructions of a recurrence that a place is checked against besides operands and consumers.
MOST_ENDS = 24


class State(NamedTuple):
    """A partial mapping."""

    tile: Ints
    """[N] tile of each instruction; -1 if not placed."""
    slot: Ints
    """[N] slot of each instruction; -1 if not placed."""
    time: Ints
    """[N] earliest clock of the slot that the operands allow; -1 if not placed."""
    longest: Ints2D
    """[N + 1, N + 1] weight of the heaviest path, in turns; the last row and column stand for clock 0."""
    taken: Bools2D
    """[T, II] slots in which an instruction is issued."""
    results: Bools2D
    """[T, II] slots in which a result leaves."""
    requests: Ints2D
    """[P, II] requests to memory, by the slot of the result."""
    group_tile: Ints
    """[G] tile of each group; -1 if not decided."""
    open_tiles: Bools2D
    """[G, T] tiles that are still possible for a group, given the tiles of the others: those that links, siblings, and
    variables with a fixed tile allow."""
    load: Ints
    """[T] instructions of all groups on the tile."""
    words: Ints
    """[T] words of tile memory in use."""
    room: Ints
    """A work array, from :func:`room_for`."""


def room_for(groups: int, tiles: int, degree: int) -> Ints:
    """Allocate the work array for instructions with at most ``degree`` edges."""
    return np.empty(groups + 3 * tiles + 3 * (degree + 1 + MOST_ENDS), np.int64)


@njit_inner
def _constraints(
    tables: Tables,
    state: State,
    ahead: Ahead,
    number: int,
    ii: int,
    tile: int,
    slot: int,
    max_delay: int,
    ends: Ints,
    into: Ints,
    out: Ints,
) -> int:
    """Compute the constraints between an instruction at a place and the placed instructions; return their number.

    Fills ``ends``, ``into`` and ``out``: ``turn[number] >= turn[end] + into``, ``turn[end] >= turn[number] + out``.
    """
    count = tables.group.shape[0]
    ends[0] = count
    into[0] = -((slot - tables.least_time[number]) // ii)
    # turn <= (most - slot) // ii
    out[0] = -((tables.most_time[number] - slot) // ii)
    size = 1
    for edge in range(tables.first_edge[number], tables.first_edge[number + 1]):
        other = tables.other[edge]
        if state.tile[other] < 0:
            continue
        ends[size] = other
        distance = ii * tables.distance[edge]
        clocks = tables.clocks[edge]
        limited = clocks < 0 and max_delay < FAR
        if tables.is_output[edge]:
            # slot[o] + ii turn[o] >= slot + ii turn + clocks
            if clocks < 0:
                clocks = tables.hops[tile, state.tile[other]]
            clocks += tables.latency[number] - distance + slot - state.slot[other]
            out[size] = -((-clocks) // ii)
            into[size] = -((clocks + max_delay) // ii) if limited else NONE
        else:
            if clocks < 0:
                clocks = tables.hops[state.tile[other], tile]
            clocks += tables.latency[other] - distance + state.slot[other] - slot
            into[size] = -((-clocks) // ii)
            out[size] = -((clocks + max_delay) // ii) if limited else NONE
        size += 1
    if not ahead.with_links.shape[0]:
        return size
    for other in range(count):
        if size == ends.shape[0]:
            break
        if state.tile[other] < 0 or other == number or ahead.with_links[number, other] < NONE // 2048:
            continue
        ends[size] = other
        there = state.tile[other]
        clocks = max(ahead.with_links[number, other], ahead.without[number, other] + ahead.clocks[tile, there])
        out[size] = -((state.slot[other] - slot - clocks) // ii)
        clocks = max(ahead.with_links[other, number], ahead.without[other, number] + ahead.clocks[there, tile])
        into[size] = -((slot - state.slot[other] - clocks) // ii)
        size += 1
    return size


@njit_inner
def _starts_fit(tables: Tables, state: State, group: int, tile: int) -> bool:
    """Whether the flows whose sources all have tiles can start on different tiles if ``group`` is on ``tile``."""
    flows = tables.flow_sources.shape[0]
    if flows < 2:
        return True
    concerned = False
    for flow in range(flows):
        concerned = concerned or tables.flow_sources[flow, group]
    if not concerned:
        return True
    groups, tiles = tables.size.shape[0], tables.hops.shape[0]
    at, chosen = state.room[:groups], state.room[groups : groups + tiles]
    from_tile, queue = state.room[groups + tiles : groups + 2 * tiles], state.room[groups + 2 * tiles : groups + 3 * tiles]
    for other in range(groups):
        at[other] = state.group_tile[other]
    at[group] = tile
    chosen[:] = -1
    for flow in range(flows):
        complete = True
        for other in range(groups):
            if tables.flow_sources[flow, other] and at[other] < 0:
                complete = False
        if not complete:
            continue
        # Search an augmenting path breadth first; from_tile is the preceding tile on the path.
        from_tile[:] = -2
        head, tail = 0, 0
        for other in range(groups):
            if tables.flow_sources[flow, other] and from_tile[at[other]] == -2:
                from_tile[at[other]] = -1
                queue[tail] = at[other]
                tail += 1
        free = -1
        while head < tail:
            here = queue[head]
            head += 1
            if chosen[here] < 0:
                free = here
                break
            for other in range(groups):
                if tables.flow_sources[chosen[here], other] and from_tile[at[other]] == -2:
                    from_tile[at[other]] = here
                    queue[tail] = at[other]
                    tail += 1
        if free < 0:
            return False
        while from_tile[free] >= 0:
            chosen[free] = chosen[from_tile[free]]
            free = from_tile[free]
        chosen[free] = flow
    return True


@njit
def legal_places(
    tables: Tables,
    state: State,
    ahead: Ahead,
    number: int,
    ii: int,
    slots: int,
    room: int,
    max_delay: int,
    mask: Bools2D,
    ready: Ints,
) -> int:
    """Compute the legal places of an instruction, and return their number.

    The legal places are written to ``mask`` [T, II]. The earliest clock at which the operands have arrived on each tile is
    written to ``ready`` [T]; it is -1 for an excluded tile.

    ``slots`` and ``room`` are the numbers of instructions, and of words of variables, that each tile can hold. ``max_delay`` is
    the number of clocks that a value may wait for its consumer.
    """
    tiles = tables.hops.shape[0]
    group = tables.group[number]
    first, last = tables.first_edge[number], tables.first_edge[number + 1]
    mask[:] = False
    # Constraints on turns: for each edge the other end, and the weights of the constraint into and out of the instruction.
    begin, most = tables.size.shape[0] + 3 * tiles, last - first + 1 + MOST_ENDS
    ends = state.room[begin : begin + most]
    into, out = state.room[begin + most : begin + 2 * most], state.room[begin + 2 * most : begin + 3 * most]
    places = 0
    for tile in range(tiles):
        ready[tile] = -1
        if not state.open_tiles[group, tile]:
            continue
        early = tables.least_time[number]
        for edge in range(first, last):
            other = tables.other[edge]
            if state.tile[other] >= 0 and not tables.is_output[edge]:
                clocks = tables.clocks[edge] if tables.clocks[edge] >= 0 else tables.hops[state.tile[other], tile]
                clocks += tables.latency[other] - ii * tables.distance[edge]
                early = max(early, state.time[other] + clocks)
        ready[tile] = early
        if not tables.fits[number]:
            continue
        # The first instruction of a group decides the tile of the whole group.
        more = 1 if state.group_tile[group] < 0 else 0
        if state.load[tile] + more * tables.size[group] > slots or state.words[tile] + more * tables.words[group] > room:
            continue
        if not _starts_fit(tables, state, group, tile):
            continue
        for slot in range(ii):
            done = (slot + tables.latency[number]) % ii
            if state.taken[tile, slot] or state.results[tile, done]:
                continue
            good = True
            for limit in range(tables.port_most.shape[0] if tables.is_access[number] else 0):
                if tables.port_tiles[limit, tile] and state.requests[limit, done] >= tables.port_most[limit]:
                    good = False
            if not good:
                continue
            if tables.pinned_slot[number] >= 0 and tables.pinned_slot[number] != slot:
                continue
            size = _constraints(tables, state, ahead, number, ii, tile, slot, max_delay, ends, into, out)
            good = True
            for one in range(size):
                if out[one] <= NONE:
                    continue
                for two in range(size):
                    if into[two] <= NONE:
                        continue
                    path = 0 if ends[one] == ends[two] else state.longest[ends[one], ends[two]]
                    if path > NONE and out[one] + path + into[two] > 0:
                        good = False
                        break
                if not good:
                    break
            if good:
                mask[tile, slot] = True
                places += 1
    return places


@njit
def place_instruction(
    tables: Tables, state: State, ahead: Ahead, number: int, ii: int, tile: int, slot: int, max_delay: int
) -> None:
    """Place an instruction; the place must be legal."""
    count = tables.group.shape[0]
    group = tables.group[number]
    if state.group_tile[group] < 0:
        set_group_tile(tables, state, group, tile)
    most = tables.first_edge[number + 1] - tables.first_edge[number] + 1 + MOST_ENDS
    ends, into, out = state.room[:most], state.room[most : 2 * most], state.room[2 * most : 3 * most]
    size = _constraints(tables, state, ahead, number, ii, tile, slot, max_delay, ends, into, out)
    longest = state.longest
    for node in range(count + 1):
        if node < count and state.tile[node] < 0:
            continue
        to, back = NONE, NONE
        for at in range(size):
            path = 0 if node == ends[at] else longest[node, ends[at]]
            if path > NONE and into[at] > NONE:
                to = max(to, path + into[at])
            path = 0 if node == ends[at] else longest[ends[at], node]
            if path > NONE and out[at] > NONE:
                back = max(back, path + out[at])
        longest[node, number], longest[number, node] = to, back
    state.tile[number], state.slot[number] = tile, slot
    state.taken[tile, slot] = True
    done = (slot + tables.latency[number]) % ii
    state.results[tile, done] = True
    for limit in range(tables.port_most.shape[0] if tables.is_access[number] else 0):
        if tables.port_tiles[limit, tile]:
            state.requests[limit, done] += 1
    for one in range(count + 1):
        to = longest[one, number]
        if one == number or to <= NONE or (one < count and state.tile[one] < 0):
            continue
        for two in range(count + 1):
            back = longest[number, two]
            if back > NONE and two != one and to + back > longest[one, two]:
                longest[one, two] = to + back
    for node in range(count):
        if state.tile[node] >= 0:
            state.time[node] = state.slot[node] + ii * longest[count, node]


@njit
def set_group_tile(tables: Tables, state: State, group: int, tile: int) -> None:
    """Set the tile of a group, and exclude the tiles that other groups can then no longer be on."""
    groups, tiles = state.open_tiles.shape
    state.group_tile[group] = tile
    state.load[tile] += tables.size[group]
    state.words[tile] += tables.words[group]
    for other_tile in range(tiles):
        state.open_tiles[group, other_tile] = state.open_tiles[group, other_tile] and other_tile == tile
    for other in range(groups):
        if tables.apart[group, other] and other != group:
            state.open_tiles[other, tile] = False
    for number in range(tables.group.shape[0]):
        if tables.group[number] != group:
            continue
        for edge in range(tables.first_edge[number], tables.first_edge[number + 1]):
            other = tables.group[tables.other[edge]]
            if other == group or tables.clocks[edge] >= 0:
                continue
            for other_tile in range(tiles):
                clocks = tables.hops[tile, other_tile] if tables.is_output[edge] else tables.hops[other_tile, tile]
                if clocks >= FAR:
                    state.open_tiles[other, other_tile] = False
