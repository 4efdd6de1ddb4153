"""Observations of a partial mapping, as arrays of fixed sizes.

Static parts are the nodes and edges of the graph (:mod:`~stowplan.learned_guidance.modulo_scheduling.view`) and the links of
the machine. Dynamic parts are the places of nodes, the node to place, and the time at which its operands arrive. For each tile
there are also the instructions on it, and the freedom that a placement would leave to the node's neighbours. The features of a
tile are relative to the node and its neighbours, so that they are comparable between machines of all sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Bools2D, Ints2D, Singles2D, njit, njit_inner
from stowplan.learned_guidance.modulo_scheduling.view import EDGE_FEATURES, NODE_FEATURES, Limits, View, view_of

if TYPE_CHECKING:
    import gymnasium

    from stowplan.learned_guidance.modulo_scheduling.state import Mapping

Observation = dict[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Columns of a tile. *Relatives* are the node's neighbours over edges, and instructions that must be on other tiles than it.
#:
#: - ``legal`` to ``used``: whether a slot of the tile is legal, the occupied parts of its slots and of its words of memory, its
#:   position in the grid, its number of links, and whether an instruction is on it
#: - ``ready`` to ``wait``: the time at which the operands arrive (``ready``) and the first legal issue (``issue``), both minus
#:   the smallest such time of a tile with a legal slot. They are divided by twice the latency, and in the columns that end in
#:   ``_ii`` by the II. ``wait`` is the time from the first to the second, divided by the II.
#: - ``free_0`` to ``free_4``: whether a slot of the tile is free, and the free part of the slots of all tiles within 1, 2 and 4
#:   links
#: - ``clocks``: the clocks that values take over links to and from placed relatives, in total
#: - ``steps_1`` to ``steps_far``: the mean number of links to placed nodes at a distance of 1, 2, 3, and more than 3 edges from
#:   the node. In ``steps_far``, the number of links to each of them is first divided by its distance plus 1.
#: - ``slack``: the array ``slack`` of :func:`observe`, in latencies
#: - ``overreach`` and ``tight``: weighted numbers of placed nodes that are more links away from the tile than edges from the
#:   node (``overreach``), or exactly as many (``tight``)
#: - ``least_left`` to ``mean_left``: numbers of tiles that would be left to relatives that are not placed: the smallest, how
#:   many relatives would have no tile left and one tile left, and the mean
TILE_COLUMNS = (
    "legal", "load", "words", "row", "off_centre", "degree", "used",
    "ready", "ready_ii", "issue", "issue_ii", "wait",
    "free_0", "free_1", "free_2", "free_4",
    "clocks", "steps_1", "steps_2", "steps_3", "steps_far",
    "slack", "overreach", "tight", "least_left", "none_left", "one_left", "mean_left",
)  # fmt: skip
TILE_FEATURES = len(TILE_COLUMNS)

#: Slack that stands for no limit: the node is on no recurrence, no other instruction of its recurrence is placed, or the tile
#: has no legal slot.
ENDLESS = 1 << 20

#: Columns of a node's state: whether it is placed, its issue relative to the node to place, its nearness to that node, and
#: whether it is that node.
STATE_FEATURES = 4

#: Columns of the mapping as a whole: ``_fill_globals`` describes them.
GLOBAL_FEATURES = 16


def observation_space(limits: Limits) -> gymnasium.spaces.Dict:
    """Return the Gymnasium space of :func:`observe`."""
    from gymnasium import spaces

    nodes, edges, tiles, slots = limits.nodes, limits.edges, limits.tiles, limits.slots

    def real(*shape: int) -> spaces.Box:
        return spaces.Box(-_MOST, _MOST, shape, np.float32)

    def whole(low: int, high: int, *shape: int, kind: Any = np.int32) -> spaces.Box:
        return spaces.Box(low, high, shape, kind)

    return spaces.Dict(
        {
            "graph": whole(0, (1 << 22) - 1, 2),
            "sizes": whole(0, 1 << 20, 4),
            "nodes": real(nodes, NODE_FEATURES),
            "edges": whole(-1, nodes, edges, 2, kind=np.int16),
            "edge_features": real(edges, EDGE_FEATURES),
            "hops": whole(-1, 1000, tiles, tiles, kind=np.int16),
            "current": whole(0, nodes, 1, kind=np.int16),
            "placed": whole(-1, tiles, nodes, kind=np.int16),
            "states": real(nodes, STATE_FEATURES),
            "tiles": real(tiles, TILE_FEATURES),
            "ready": whole(0, 1 << 30, tiles),
            "slack": whole(-ENDLESS, ENDLESS, tiles),
            "mask": whole(0, 1, tiles, slots, kind=np.int8),
            "globals": real(GLOBAL_FEATURES),
        }
    )


#: Largest absolute value of the real numbers of an observation.
_MOST = 8.0


def observe(mapping: Mapping, limits: Limits) -> Observation:
    """Observe a mapping. If it is complete, no node is marked as the node to place.

    Returns
    -------
    dict
        ``graph`` [2] identifies the graph; ``sizes`` [4] nodes, edges, tiles, initiation interval; ``nodes`` [N, F], ``edges``
        [E, 2] (producer and consumer, then padding with -1), ``edge_features`` [E, F]; ``hops`` [T, T] clocks from tile to
        tile, -1 if there is no link; ``current`` [1] the node to place; ``placed`` [N] tiles, -1 for none; ``states`` [N, F];
        ``tiles`` [T, F]; ``ready`` [T] earliest issue; ``mask`` [T, S] legal places; ``globals`` [F]. ``slack`` [T] is for the
        recurrence of the node to place: if the node is issued on the tile more than this number of clocks after the first legal
        time, a value reaches a placed instruction too late. Without such a limit it is :data:`ENDLESS`.

    Raises
    ------
    InputError
        If the mapping does not fit the limits.
    """
    view = view_of(mapping.problem)
    limits.check(view, mapping.ii)
    static = _static(view, limits)
    tiles = np.zeros((limits.tiles, TILE_FEATURES), np.float32)
    states = np.zeros((limits.nodes, STATE_FEATURES), np.float32)
    mask = np.zeros((limits.tiles, limits.slots), np.int8)
    ready = np.zeros(limits.tiles, np.int32)
    slack = np.full(limits.tiles, ENDLESS, np.int32)
    placed = np.full(limits.nodes, -1, np.int16)
    whole = np.zeros(GLOBAL_FEATURES, np.float32)
    current = int(mapping.current)
    placed[: view.count] = mapping.tile
    if current >= 0:
        legal = mapping.mask()
        mask[: view.tiles, : mapping.ii] = legal
        ready[: view.tiles] = np.clip(mapping.ready, 0, 1 << 30)
        _fill(
            current, mapping.ii, view.latency, view.slots, view.room, view.path,
            mapping.tile, mapping.time, mapping.ready, legal, view.hops, view.steps, view.near, view.group,
            view.size, view.words, view.apart, view.allowed, view.heights, *view.related, view.clocks, *view.cycles(mapping.ii),
            _grid(view), tiles, slack, states, whole,
            np.empty(3 * view.tiles + len(view.words), np.int64), np.empty((len(view.related[1]), view.tiles), np.bool_),
        )  # fmt: skip
    _fill_globals(mapping, view, whole)
    return {
        **static,
        "sizes": np.array([view.count, len(view.edges), view.tiles, mapping.ii], np.int32),
        "current": np.array([max(current, 0)], np.int16),
        "placed": placed,
        "states": states,
        "tiles": tiles,
        "ready": ready,
        "slack": slack,
        "mask": mask,
        "globals": whole,
    }


def _static(view: View, limits: Limits) -> Observation:
    """Return the arrays that all observations of a graph share; cached for each limits."""
    padded: dict[Limits, Observation] = view.__dict__.setdefault("_padded", {})
    if limits not in padded:
        nodes = np.zeros((limits.nodes, NODE_FEATURES), np.float32)
        nodes[: view.count] = np.clip(view.nodes, -_MOST, _MOST)
        edges = np.full((limits.edges, 2), -1, np.int16)
        edges[: len(view.edges)] = view.edges
        edge_features = np.zeros((limits.edges, EDGE_FEATURES), np.float32)
        edge_features[: len(view.edges)] = view.edge_features
        hops = np.full((limits.tiles, limits.tiles), -1, np.int16)
        hops[: view.tiles, : view.tiles] = view.hops
        padded[limits] = {"graph": view.key, "nodes": nodes, "edges": edges, "edge_features": edge_features, "hops": hops}
    return padded[limits]


def _grid(view: View) -> Floats:
    """Return [T, 3]: the row of a tile in the grid, its distance from the middle, and its number of links divided by the
    largest number of links of a tile."""
    grid: Floats | None = view.__dict__.get("_grid")
    if grid is None:
        machine = view.problem.machine
        row, column = np.divmod(np.arange(view.tiles), machine.columns)
        rows, columns = (row + 0.5) / machine.rows, (column + 0.5) / machine.columns
        middle = np.maximum(np.abs(rows - 0.5), np.abs(columns - 0.5)) * 2
        degree = (view.hops >= 0).sum(axis=1)
        grid = np.stack([rows, middle, degree / degree.max()], axis=1).astype(np.float32)
        view.__dict__["_grid"] = grid
    return grid


def _fill_globals(mapping: Mapping, view: View, columns: Floats) -> None:
    """Fill columns 0 to 9 of the mapping as a whole, which need no compiled loop.

    They are: logarithms of the II and of the number of instructions; instructions per slot of the machine; the placed part of
    the instructions; remaining instructions per remaining slot; the latency; the logarithm of the number of tiles; the limit on
    waiting of values; the least II over the II; and the critical path over II and latency.
    """
    ii, delay = mapping.ii, view.problem.rules.max_delay
    done = int((mapping.tile >= 0).sum())
    columns[0] = np.log2(ii) / 4
    columns[1] = np.log2(max(view.count, 1)) / 6
    columns[2] = view.count / (view.tiles * ii)
    columns[3] = done / max(view.count, 1)
    columns[4] = (view.count - done) / max(1, view.tiles * ii - done)
    columns[5] = view.latency / 4
    columns[6] = np.log2(view.tiles) / 4
    columns[7] = 0.0 if delay is None else 1.0 / (1.0 + delay)
    columns[8] = min(view.least_ii / ii, 2.0)
    columns[9] = min(view.path / (ii * view.latency), _MOST)


@njit
def _fill(
    current: int, ii: int, latency: int, most: int, room: int, path: int,
    tile: Ints, time: Ints, ready: Ints, legal: Bools2D, hops: Ints2D, steps: Ints2D, near: Ints2D, group: Ints,
    size: Ints, words: Ints, apart: Bools2D, allowed: Bools2D, heights: Ints, ends: Ints, others: Ints, relations: Ints,
    clocks_any: Ints2D, with_links: Ints2D, without: Ints2D,
    grid: Singles2D, tiles: Singles2D, slack: npt.NDArray[np.int32], states: Singles2D, whole: Floats,
    work: Ints, could: Bools2D,
) -> None:  # fmt: skip
    """Fill the columns of tiles and nodes, and columns 10 to 15 of the mapping as a whole.

    Columns 10 to 13 are the part of the tiles that have a legal slot, and the numbers of placed producers, of placed consumers
    and of relatives that are not placed. Column 14 is the clock at which the longest chain of values from the node ends if the
    node is issued at the first legal time. Column 15 is the clock at which the last placed instruction ends. Both are divided
    by the length of the critical path.

    Instructions of a *group* must share a tile. An entry of ``relations`` is a sum of 1 (the relative consumes the node's
    value), 2 (it produces an operand of the node) and 4 (both must be on different tiles). ``work`` [3 width + groups] and
    ``could`` [at least the number of the node's relatives, width] are work arrays.
    """
    count, width = len(tile), len(hops)
    slots = min(ii, most)
    load, used, issue, at_group = work[:width], work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    load[:], used[:], issue[:], at_group[:] = 0, 0, -1, -1
    last = 0
    for number in range(count):
        if tile[number] >= 0:
            if at_group[group[number]] < 0:
                # The first instruction of a group decides the tile of the whole group.
                load[tile[number]] += size[group[number]]
                used[tile[number]] += words[group[number]]
            at_group[group[number]] = tile[number]
            last = max(last, time[number])
    # Issues: the earliest legal on each tile.
    first_ready, first_issue = 1 << 40, 1 << 40
    open_tiles = 0
    for at in range(width):
        for slot in range(ii):
            if legal[at, slot]:
                when = ready[at] + (slot - ready[at]) % ii
                if issue[at] < 0 or when < issue[at]:
                    issue[at] = when
        if issue[at] >= 0:
            open_tiles += 1
            first_ready = min(first_ready, ready[at])
            first_issue = min(first_issue, issue[at])
    if open_tiles == 0:
        first_ready = first_issue = 0
    # Tiles on which relatives that are not placed could be placed.
    start = ends[current - 1] if current > 0 else 0
    relatives = ends[current] - start
    waiting = 0
    producers, consumers = 0, 0
    for at in range(relatives):
        other = others[start + at]
        if tile[other] >= 0:
            if relations[start + at] & 2:
                producers += 1
            if relations[start + at] & 1:
                consumers += 1
            continue
        waiting += 1
        mine = group[other]
        for where in range(width):
            fits = load[where] + size[mine] <= slots and allowed[mine, where]
            if at_group[mine] >= 0:
                fits = at_group[mine] == where
            could[at, where] = fits
        low = ends[other - 1] if other > 0 else 0
        for place in range(low, ends[other]):
            there = tile[others[place]]
            if there < 0:
                continue
            for where in range(width):
                if could[at, where]:
                    relation = relations[place]
                    if (
                        (relation & 1 and hops[where, there] < 0)
                        or (relation & 2 and hops[there, where] < 0)
                        or (relation & 4 and where == there and group[others[place]] != mine)
                    ):
                        could[at, where] = False
    free_all = 0
    for where in range(width):
        free_all += slots - load[where]
    for at in range(width):
        row = tiles[at]
        row[0] = 1.0 if issue[at] >= 0 else 0.0
        row[1] = load[at] / slots
        row[2] = used[at] / room
        row[3], row[4], row[5] = grid[at, 0], grid[at, 1], grid[at, 2]
        row[6] = 1.0 if load[at] else 0.0
        row[7] = _clip((ready[at] - first_ready) / (2.0 * latency))
        row[8] = _clip((ready[at] - first_ready) / (1.0 * ii))
        if issue[at] >= 0:
            row[9] = _clip((issue[at] - first_issue) / (2.0 * latency))
            row[10] = _clip((issue[at] - first_issue) / (1.0 * ii))
            row[11] = (issue[at] - ready[at]) / ii
        else:
            row[9] = row[10] = 4.0
        free_1, free_2, free_4, all_1, all_2, all_4 = 0, 0, 0, 0, 0, 0
        for where in range(width):
            apart_by = steps[at, where]
            left = slots - load[where]
            if apart_by <= 1:
                free_1 += left
                all_1 += slots
            if apart_by <= 2:
                free_2 += left
                all_2 += slots
            if apart_by <= 4:
                free_4 += left
                all_4 += slots
        row[12] = 1.0 if load[at] < slots else 0.0
        row[13], row[14], row[15] = free_1 / all_1, free_2 / all_2, free_4 / all_4
        # Places of the relatives.
        clocks = 0.0
        for place in range(relatives):
            there = tile[others[start + place]]
            if there >= 0:
                if relations[start + place] & 2:
                    clocks += max(hops[there, at], 0)
                if relations[start + place] & 1:
                    clocks += max(hops[at, there], 0)
        row[16] = _clip(clocks / 4.0)
        over, tight = 0.0, 0.0
        far_1, far_2, far_3, far_4, n_1, n_2, n_3, n_4 = 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0
        for number in range(count):
            if tile[number] < 0 or number == current:
                continue
            edges, links = near[number, current], steps[tile[number], at]
            if edges >= 15:
                continue
            if links > edges:
                over += (links - edges) / (1.0 + edges)
            elif links == edges and edges > 1:
                tight += 1.0 / edges
            if edges == 1:
                far_1 += links
                n_1 += 1
            elif edges == 2:
                far_2 += links
                n_2 += 1
            elif edges == 3:
                far_3 += links
                n_3 += 1
            else:
                far_4 += links / (1.0 + edges)
                n_4 += 1
        row[17], row[18] = far_1 / max(n_1, 1) / 2, far_2 / max(n_2, 1) / 2
        row[19], row[20] = far_3 / max(n_3, 1) / 2, far_4 / max(n_4, 1)
        # The number of clocks by which the issue may be later than the first legal one, before a value of the node's recurrence
        # arrives too late at a placed instruction.
        room_left = 1 << 20
        if issue[at] >= 0:
            for number in range(count):
                if tile[number] >= 0 and with_links[current, number] > -(1 << 39):
                    needed = max(with_links[current, number], without[current, number] + clocks_any[at, tile[number]])
                    room_left = min(room_left, time[number] - issue[at] - needed)
        slack[at] = room_left
        row[21] = 2.0 if room_left == 1 << 20 else max(min(room_left / (1.0 * latency), 2.0), -2.0)
        row[22], row[23] = _clip(over), _clip(tight / 2)
        # Tiles left to relatives that are not placed.
        least, total, none, one = 1 << 30, 0, 0, 0
        more = 0 if at_group[group[current]] >= 0 else size[group[current]]
        for place in range(relatives):
            other = others[start + place]
            if tile[other] >= 0:
                continue
            relation = relations[start + place]
            together = group[other] == group[current]
            choices = 0
            for where in range(width):
                if not could[place, where]:
                    continue
                if relation & 1 and hops[at, where] < 0:
                    continue
                if relation & 2 and hops[where, at] < 0:
                    continue
                if together != (where == at) and (together or apart[group[other], group[current]]):
                    continue
                if where == at and not together and load[at] + more + size[group[other]] > slots:
                    continue
                choices += 1
            least = min(least, choices)
            total += choices
            none += choices == 0
            one += choices == 1
        row[24] = min(least, 5) / 5.0
        row[25] = _clip(1.0 * none)
        row[26] = _clip(1.0 * one)
        row[27] = min(total / max(waiting, 1) / 5.0, 2.0)
    for number in range(count):
        state = states[number]
        if tile[number] >= 0:
            state[0] = 1.0
            state[1] = _clip((time[number] - first_issue) / (4.0 * latency))
        state[2] = 1.0 / (1.0 + near[number, current])
        state[3] = 1.0 if number == current else 0.0
    whole[10] = open_tiles / width
    whole[11] = producers / 4.0
    whole[12] = consumers / 4.0
    whole[13] = waiting / 8.0
    whole[14] = _clip((first_issue + heights[current] + latency) / (1.0 * path))
    whole[15] = _clip((last + latency) / (1.0 * path))


@njit_inner
def _clip(value: float) -> float:
    return min(max(value, -8.0), 8.0)
