"""One colour a tensor, the same wherever it stands, unlike its neighbours'."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

#: Eighteen colours, each as far as possible from those before it, for full colour vision and for the two kinds of red-green
#: blindness (distances in OKLab; Machado et al. 2009 for the simulation). All stand out on white and on near-black.
PALETTE = (
    *("#4b78c3", "#f0e169", "#f0a5ff", "#c37800", "#2dc396", "#a54b78", "#96f0e1", "#78692d", "#b4b42d"),
    *("#a596d2", "#5a9696", "#d26978", "#ffd2b4", "#ff96b4", "#78c3d2", "#00965a", "#b4d287", "#d29669"),
)


def assign_colours(problem: Problem, plans: Sequence[Plan]) -> dict[int, int]:
    """Palette index of every tensor that has a residency in one of ``plans``.

    Up to ``len(PALETTE)`` tensors get colours of their own; beyond that, a tensor gets the colour least used by the tensors it
    touches in a layout, then the least used of all.
    """
    touching: defaultdict[int, set[int]] = defaultdict(set)
    area: Counter[int] = Counter()
    for plan in plans:
        for left, right in _touching_pairs(plan):
            touching[left].add(right)
            touching[right].add(left)
        for residency in plan.residencies:
            area[residency.tensor] += (residency.end - residency.start) * problem.tensors[residency.tensor].size

    colours: dict[int, int] = {}
    used = [0] * len(PALETTE)
    # The largest first: they are what the eye sees.
    for tensor in sorted(area, key=lambda index: (-area[index], index)):
        near = Counter(colours[other] for other in touching[tensor] if other in colours)
        colour = min(range(len(PALETTE)), key=lambda index: (near[index], used[index], index))
        colours[tensor] = colour
        used[colour] += 1
    return colours


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on ``#rrggbb`` (relative luminance of WCAG 2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _touching_pairs(plan: Plan) -> set[tuple[int, int]]:
    """Tensors that stand next to each other in memory, or take each other's place; an approximation."""
    events = [(residency.start, 0, index) for index, residency in enumerate(plan.residencies)]
    events += [(residency.end, 1, index) for index, residency in enumerate(plan.residencies)]
    standing: list[tuple[int, int]] = []
    pairs: set[tuple[int, int]] = set()
    # Starts before ends at one boundary, so that a newcomer still meets those whose place it takes.
    for _, is_end, index in sorted(events):
        residency = plan.residencies[index]
        entry = (residency.offset, index)
        at = bisect.bisect_left(standing, entry)
        if is_end:
            standing.pop(at)
            continue
        for _, other in standing[max(0, at - 2) : at + 2]:
            first, second = sorted((residency.tensor, plan.residencies[other].tensor))
            if first != second:
                pairs.add((first, second))
        standing.insert(at, entry)
    return pairs
