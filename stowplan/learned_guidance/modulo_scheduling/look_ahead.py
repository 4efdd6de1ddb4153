"""Compiled look-ahead of a partial mapping: exclude places that leave another group of instructions without a tile.

It is domain propagation (arc consistency, Mackworth 1977) over links, siblings and the room on tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stowplan.compiled import Bools2D, njit, njit_inner
from stowplan.learned_guidance.modulo_scheduling.compiled import FAR, Bools, Ints, State, Tables


class Work(NamedTuple):
    """Work arrays for G groups and T tiles."""

    waiting: Bools
    """[G] groups whose tiles have changed, so that the groups next to them must be checked."""
    tried: Bools2D
    """[G, T] tiles that remain for each group if a place is tried."""
    near: Bools
    """[T] tiles that a link connects with a remaining tile of one group."""
    queue: Ints
    """[G] the waiting groups."""


def allocate_work(groups: int, tiles: int) -> Work:
    """Allocate work arrays."""
    bools = np.bool_
    return Work(np.empty(groups, bools), np.empty((groups, tiles), bools), np.empty(tiles, bools), np.empty(groups, np.int64))


@njit
def look_ahead(tables: Tables, state: State, group: int, slots: int, room: int, mask: Bools2D, work: Work) -> int:
    """Remove from ``mask`` the tiles that leave another group without a tile; return the number of remaining places.

    ``mask`` has the legal places [T, II] of an instruction of ``group``. ``slots`` and ``room`` are the numbers of
    instructions, and of words of variables, that each tile can hold. ``state.open_tiles`` keeps the consequences of the placed
    groups.
    """
    groups, tiles = state.open_tiles.shape
    open_tiles = state.open_tiles
    waiting, tried = work.waiting, work.tried
    waiting[:] = True
    good = True
    for other in range(groups):
        for tile in range(tiles):
            full = state.load[tile] + tables.size[other] > slots or state.words[tile] + tables.words[other] > room
            if state.group_tile[other] < 0 and full:
                open_tiles[other, tile] = False
        good = good and open_tiles[other].any()
    good = good and _propagate(tables, open_tiles, work)
    places = 0
    for tile in range(tiles):
        if not mask[tile].any():
            continue
        fits = good and open_tiles[group, tile]
        if fits and state.group_tile[group] < 0:
            for other in range(groups):
                for other_tile in range(tiles):
                    tried[other, other_tile] = open_tiles[other, other_tile]
            waiting[:] = False
            waiting[group] = True
            tried[group] = False
            tried[group, tile] = True
            load, words = state.load[tile] + tables.size[group], state.words[tile] + tables.words[group]
            for other in range(groups):
                full = load + tables.size[other] > slots or words + tables.words[other] > room
                if other != group and state.group_tile[other] < 0 and full and tried[other, tile]:
                    tried[other, tile] = False
                    waiting[other] = True
                    fits = fits and tried[other].any()
            fits = fits and _propagate(tables, tried, work)
        if fits:
            places += mask[tile].sum()
        else:
            mask[tile] = False
    return places


@njit_inner
def _propagate(tables: Tables, open_tiles: Bools2D, work: Work) -> bool:
    """Reduce the tiles of groups to arc consistency over links and siblings, beginning with ``work.waiting``. Return whether
    all groups still have a tile."""
    groups, tiles = open_tiles.shape
    waiting, near, queue = work.waiting, work.near, work.queue
    # The queue is a ring; a group is in it at most once.
    head, size = 0, 0
    for group in range(groups):
        if waiting[group]:
            queue[size] = group
            size += 1
    while size > 0:
        group = queue[head]
        head = (head + 1) % groups
        size -= 1
        waiting[group] = False
        count, only = 0, -1
        for tile in range(tiles):
            if open_tiles[group, tile]:
                count += 1
                only = tile
        for kind in range(2):
            begins, ends = tables.first_arc[group], tables.first_arc[group + 1]
            has_near = False
            for arc in range(begins, ends):
                if tables.arc_is_output[arc] != (kind == 1):
                    continue
                if not has_near:
                    near[:] = False
                    for tile in range(tiles):
                        if open_tiles[group, tile]:
                            for to in range(tiles):
                                clocks = tables.hops[tile, to] if kind == 1 else tables.hops[to, tile]
                                if clocks < FAR:
                                    near[to] = True
                    has_near = True
                other = tables.arc_other[arc]
                changed, left = False, False
                for tile in range(tiles):
                    if open_tiles[other, tile]:
                        if near[tile]:
                            left = True
                        else:
                            open_tiles[other, tile] = False
                            changed = True
                if not left:
                    return False
                if changed and not waiting[other]:
                    waiting[other] = True
                    queue[(head + size) % groups] = other
                    size += 1
        if count == 1:
            for other in range(groups):
                if tables.apart[group, other] and other != group and open_tiles[other, only]:
                    open_tiles[other, only] = False
                    if not open_tiles[other].any():
                        return False
                    if not waiting[other]:
                        waiting[other] = True
                        queue[(head + size) % groups] = other
                        size += 1
    return True
