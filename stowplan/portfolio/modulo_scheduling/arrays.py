"""A loop body on its machine as flat arrays, for the compiled annealing of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stowplan.portfolio.modulo_scheduling.body import FAR, Body, Ints


class Data(NamedTuple):
    """A loop body for compiled code. G groups, I instructions, T tiles; lists one after the other, with where each begins."""

    link_start: Ints
    """[G + 1]"""
    link: Ints
    """Groups that exchange values with each."""
    link_out: Ints
    """1 where the value goes to that group, 0 where it comes from it."""
    excess: Ints
    """[2, T, T] Links that are missing from tile to tile, against and along the direction of a value."""
    apart_start: Ints
    """[G + 1]"""
    apart: Ints
    """Groups on other tiles."""
    size: Ints
    """[G] Instructions."""
    words: Ints
    """[G]"""
    slots: int
    """Instructions of a tile at most."""
    room: int
    """Words of a tile at most."""
    allowed: Ints
    """[G, T] 1 where a group may stand."""
    hops: Ints
    """[T, T] Clocks from tile to tile; where there is no link, of a way over several."""
    near_start: Ints
    """[T + 1]"""
    near: Ints
    """Tiles that are a link or none away."""
    member_start: Ints
    """[G + 1]"""
    member: Ints
    """Timed instructions of each group."""
    group: Ints
    """[I] Of each instruction."""
    latency: Ints
    """[I]"""
    mixed: int
    """1 where latencies differ, so that results may meet where issues do not."""
    wait_start: Ints
    """[I + 1]"""
    wait: Ints
    """Timed instructions that each waits for, or that wait for it."""
    wait_out: Ints
    """1 where the value goes to that instruction, 0 where it comes from it."""
    wait_distance: Ints
    """Iterations."""
    wait_clocks: Ints
    """Clocks from issue to issue, but for those of the link: latency less what distances give at this II."""
    ii: int


def _lists(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Where each list begins, and all of them one after the other."""
    start = np.zeros(len(parts) + 1, np.int64)
    start[1:] = np.cumsum([len(part) for part in parts])
    return start, np.array([each for part in parts for each in part], np.int64)


def build(body: Body) -> Data:
    """Tables of a loop body; what depends on its II is set by :func:`at_ii`."""
    links: list[set[tuple[int, int]]] = [set() for _ in body.members]
    for edge in body.structure.between:
        one, two = body.group[edge.source], body.group[edge.target]
        if one != two:
            links[one].add((two, 1))
            links[two].add((one, 0))
    link_start, link = _lists([[other for other, _ in sorted(each)] for each in links])
    apart_start, apart = _lists(body.apart)
    hops = np.array(body.hops)
    # Links beyond one, at least one where there is none.
    excess = np.where(hops < FAR, 0, np.maximum(1, np.minimum(body.steps, 2 * body.tiles) - 1))
    ways = np.where(hops < FAR, hops, 2 * np.minimum(body.steps, 2 * body.tiles))
    near_start, near = _lists(
        [[b for b in range(body.tiles) if hops[a, b] < FAR or hops[b, a] < FAR] for a in range(body.tiles)]
    )
    allowed = np.zeros((len(body.members), body.tiles), np.int64)
    for group, tiles in enumerate(body.allowed):
        allowed[group, list(tiles)] = 1
    structure = body.structure
    slotted = set(structure.slotted)
    member_start, member = _lists([[number for number in members if number in slotted] for members in body.members])
    # Other edges can wait: what is on no common cycle moves by whole IIs.
    every: list[list[tuple[int, int, int, int]]] = [[] for _ in range(body.count)]
    for edge in structure.between:
        if structure.component[edge.source] == structure.component[edge.target]:
            every[edge.source].append((edge.target, 1, edge.distance, body.latency[edge.source]))
            every[edge.target].append((edge.source, 0, edge.distance, body.latency[edge.source]))
    wait_start, wait = _lists([[other for other, *_ in waits] for waits in every])
    return Data(
        link_start=link_start,
        link=link,
        link_out=np.array([out for each in links for _, out in sorted(each)], np.int64),
        excess=np.stack((excess.T, excess)).astype(np.int64),
        apart_start=apart_start,
        apart=apart,
        size=np.array([len(members) for members in body.members], np.int64),
        words=np.array(body.words, np.int64),
        slots=0,
        room=body.room,
        allowed=allowed,
        hops=ways.astype(np.int64),
        near_start=near_start,
        near=near,
        member_start=member_start,
        member=member,
        group=np.array(body.group, np.int64),
        latency=np.array(body.latency, np.int64),
        mixed=int(not structure.has_one_latency),
        wait_start=wait_start,
        wait=wait,
        wait_out=np.array([each[1] for waits in every for each in waits], np.int64),
        wait_distance=np.array([each[2] for waits in every for each in waits], np.int64),
        wait_clocks=np.array([each[3] for waits in every for each in waits], np.int64),
        ii=1,
    )


def at_ii(data: Data, body: Body, ii: int) -> Data:
    """The tables at an initiation interval."""
    return data._replace(
        slots=min(ii, body.problem.machine.instruction_depth),
        wait_clocks=data.wait_clocks - ii * data.wait_distance,
        ii=ii,
    )
