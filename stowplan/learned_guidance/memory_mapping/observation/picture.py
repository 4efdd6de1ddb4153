"""Pictures of a memory mapping, whole or in the making: as pixels with NumPy alone, and as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.plan import Copy, Residency
from stowplan.models.memory_mapping.problem import Problem

Picture = npt.NDArray[np.uint8]

#: Pixels of a picture: memory above, a gap, the copy channel below.
HEIGHT, WIDTH, CHANNEL_HEIGHT, GAP = 256, 512, 24, 4

_BACKGROUND, _EMPTY, _NOW = (255, 255, 255), (235, 235, 235), (200, 30, 30)
_COPY_IN, _COPY_OUT = (40, 110, 200), (230, 130, 30)

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def as_pixels(problem: Problem, residencies: Sequence[Residency], copies: Sequence[Copy], now: int | None = None) -> Picture:
    """The memory map and the copy channel as RGB, shape (HEIGHT + GAP + CHANNEL_HEIGHT, WIDTH, 3).

    Time runs to the right, offsets upwards; each tensor has a colour of its own. In the channel, below, copies in are blue and
    copies out orange. A red line marks step ``now``.
    """
    picture = np.full((HEIGHT + GAP + CHANNEL_HEIGHT, WIDTH, 3), _BACKGROUND, dtype=np.uint8)
    memory, channel = picture[:HEIGHT], picture[HEIGHT + GAP :]
    memory[:] = _EMPTY
    channel[:] = _EMPTY
    for item in residencies:
        top = item.offset + problem.tensors[item.tensor].size
        # Row 0 is the top of the picture, and of memory.
        rows = _span(problem.capacity - top, problem.capacity - item.offset, problem.capacity, HEIGHT)
        memory[rows, _span(item.start, item.end, problem.horizon, WIDTH)] = _colour(item.tensor)
    for copy in copies:
        channel[:, _span(copy.start, copy.end, problem.horizon, WIDTH)] = _COPY_IN if copy.direction == "in" else _COPY_OUT
    if now is not None and now < problem.horizon:
        picture[:, _span(now, now, problem.horizon, WIDTH)] = _NOW
    return picture


def as_text(
    problem: Problem,
    residencies: Sequence[Residency],
    copies: Sequence[Copy],
    now: int | None = None,
    *,
    rows: int = 16,
    columns: int = 72,
) -> str:
    """The same in characters: a letter for each tensor, ``>`` for copies in, ``<`` for copies out, ``^`` under step ``now``."""
    if 0 < problem.horizon < columns:
        # Whole characters for each step.
        columns -= columns % problem.horizon
    memory = [["."] * columns for _ in range(rows)]
    channel, cursor = ["."] * columns, [" "] * columns
    for item in residencies:
        top = item.offset + problem.tensors[item.tensor].size
        letter = _LETTERS[item.tensor % len(_LETTERS)]
        for row in memory[_span(problem.capacity - top, problem.capacity - item.offset, problem.capacity, rows)]:
            span = _span(item.start, item.end, problem.horizon, columns)
            row[span] = letter * (span.stop - span.start)
    for copy in copies:
        span = _span(copy.start, copy.end, problem.horizon, columns)
        channel[span] = (">" if copy.direction == "in" else "<") * (span.stop - span.start)
    if now is not None and now < problem.horizon:
        cursor[_span(now, now, problem.horizon, columns)] = "^"
    lines = [*("memory  " + "".join(row) for row in memory), "channel " + "".join(channel), "        " + "".join(cursor)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _span(start: int, end: int, length: int, cells: int) -> slice:
    """Cells that the part ``[start, end)`` of ``length`` touches; at least one."""
    first = min(start * cells // length, cells - 1)
    return slice(first, max(first + 1, -(-end * cells // length)))


def _colour(number: int) -> tuple[int, int, int]:
    """A colour for a tensor: hues a golden angle apart, so that neighbours in number differ."""
    hue = number * 0.61803 % 1.0
    red, green, blue = (
        120 + round(110 * max(0.0, min(1.0, abs((hue + shift) % 1.0 * 6 - 3) - 1))) for shift in (0, 2 / 3, 1 / 3)
    )
    return red, green, blue
