"""Loops of kernels, element by element: what they read of one operand and write of the result, in order.

Written from the kernels' own loops, and from nothing in the package. Events are ``("read", element)``, ``("write", element)``
and ``("copy", first element read, first written, how many)``, of which source and target must be apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

Event = tuple[str, int] | tuple[str, int, int, int]
Shape = tuple[int, ...]


def same_padding(size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    """Places along a dimension, and what is padded before it."""
    places = (size + stride - 1) // stride
    return places, max(0, (places - 1) * stride + (taps - 1) * dilation + 1 - size) // 2


def valid_padding(size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    extent = (taps - 1) * dilation + 1
    return (size - extent + stride) // stride, 0


class Window:
    """Taps around each place of a result."""

    def __init__(self, source: Shape, taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: str):
        rule = same_padding if padding == "SAME" else valid_padding
        self.source, self.taps, self.stride, self.dilation = source, taps, stride, dilation
        (self.rows, self.top), (self.columns, self.left) = (
            rule(source[1 + at], taps[at], stride[at], dilation[at]) for at in range(2)
        )

    def reads(self, batch: int, y: int, x: int, channels: Sequence[int]) -> Iterator[Event]:
        _, height, width, depth = self.source
        for tap_y, tap_x in product(range(self.taps[0]), range(self.taps[1])):
            in_y = y * self.stride[0] - self.top + self.dilation[0] * tap_y
            in_x = x * self.stride[1] - self.left + self.dilation[1] * tap_x
            if 0 <= in_y < height and 0 <= in_x < width:
                for channel in channels:
                    yield "read", ((batch * height + in_y) * width + in_x) * depth + channel

    def places(self) -> Iterator[tuple[int, int, int]]:
        return product(range(self.source[0]), range(self.rows), range(self.columns))


def convolution(window: Window, output_depth: int, filter_depth: int) -> Iterator[Event]:
    per_group = output_depth // (window.source[3] // filter_depth)
    element = 0
    for place in window.places():
        for channel in range(output_depth):
            begin = channel // per_group * filter_depth
            yield from window.reads(*place, range(begin, begin + filter_depth))
            yield "write", element
            element += 1


def depthwise(window: Window, multiplier: int) -> Iterator[Event]:
    element = 0
    for place in window.places():
        for channel in range(window.source[3]):
            for _ in range(multiplier):
                yield from window.reads(*place, [channel])
                yield "write", element
                element += 1


def convolution_by_columns(window: Window, output_depth: int, columns: int) -> Iterator[Event]:
    """CMSIS-NN: the windows of some places are gathered, then all their results are written, channel by channel."""
    gathered: list[int] = []
    for number, place in enumerate(window.places()):
        yield from window.reads(*place, range(window.source[3]))
        gathered.append(number)
        if len(gathered) == columns or (number + 1) % (window.rows * window.columns) == 0:
            for channel, one in product(range(output_depth), gathered):
                yield "write", one * output_depth + channel
            gathered = []


def convolution_by_filters(source: Shape, output_depth: int) -> Iterator[Event]:
    """CMSIS-NN, filters of 1 x 1: every place for one filter, then for the next."""
    places = int(np.prod(source[:3]))
    for channel, place in product(range(output_depth), range(places)):
        for at in range(source[3]):
            yield "read", place * source[3] + at
        yield "write", place * output_depth + channel


def depthwise_by_blocks(window: Window, block: int, places_at_once: int) -> Iterator[Event]:
    """CMSIS-NN's vector code: blocks of channels; in each the windows of some places are gathered before they are written."""
    depth = window.source[3]
    for begin in range(0, depth, block):
        channels = range(begin, min(begin + block, depth))
        gathered: list[int] = []
        every = list(window.places())
        for number, place in enumerate(every):
            yield from window.reads(*place, channels)
            gathered.append(number)
            if len(gathered) == places_at_once or number + 1 == len(every):
                for one, channel in product(gathered, channels):
                    yield "write", one * depth + channel
                gathered = []


def fully_connected(batches: int, depth: int, output_depth: int) -> Iterator[Event]:
    for batch in range(batches):
        for output in range(output_depth):
            for at in range(depth):
                yield "read", batch * depth + at
            yield "write", batch * output_depth + output


def element_wise(source: Shape, result: Shape) -> Iterator[Event]:
    shape = (1,) * (len(result) - len(source)) + source
    for element, index in enumerate(product(*map(range, result))):
        at = 0
        for position, size in zip(index, shape, strict=True):
            at = at * size + (position if size > 1 else 0)
        yield "read", at
        yield "write", element


def softmax(rows: int, depth: int, is_quantized: bool) -> Iterator[Event]:
    for row in range(rows):
        for _ in range(2 if is_quantized else 1):
            for at in range(depth):
                yield "read", row * depth + at
        for at in range(depth):
            yield "read", row * depth + at
            yield "write", row * depth + at
        if not is_quantized:
            for at in range(depth):
                yield "write", row * depth + at


def pad(source: Shape, paddings: Sequence[tuple[int, int]]) -> Iterator[Event]:
    sizes = [before + size + after for (before, after), size in zip(paddings, source, strict=True)]
    taken = 0
    for element, index in enumerate(product(*map(range, sizes))):
        if all(before <= at < before + size for at, (before, _), size in zip(index, paddings, source, strict=True)):
            yield "read", taken
            taken += 1
        yield "write", element


def concatenation(shapes: Sequence[Shape], axis: int, operand: int) -> Iterator[Event]:
    outer = int(np.prod(shapes[0][:axis]))
    written = 0
    for turn in range(outer):
        for number, shape in enumerate(shapes):
            count = int(np.prod(shape[axis:]))
            if number == operand:
                yield "copy", turn * count, written, count
            else:
                yield from (("write", written + at) for at in range(count))
            written += count


def image_mean(source: Shape) -> Iterator[Event]:
    batches, height, width, depth = source
    for batch, channel in product(range(batches), range(depth)):
        for place in range(height * width):
            yield "read", (batch * height * width + place) * depth + channel
        yield "write", batch * depth + channel


def mean(source: Shape, results: int) -> Iterator[Event]:
    """Sets the result to 0 first; then sums are in memory of its own."""
    yield from (("write", at) for at in range(results))
    yield from (("read", at) for at in range(int(np.prod(source))))
    yield from (("write", at) for at in range(results))


def transpose(source: Shape, perm: Sequence[int]) -> Iterator[Event]:
    strides = [int(np.prod(source[at + 1 :])) for at in range(len(source))]
    for element, index in enumerate(product(*(range(source[at]) for at in perm))):
        yield "read", sum(position * strides[at] for position, at in zip(index, perm, strict=True))
        yield "write", element


def all_first(elements: int, results: int) -> Iterator[Event]:
    yield from (("read", at) for at in range(elements))
    yield from (("write", at) for at in range(results))


def safe_distances(events: Iterator[Event], source_items: int, item: int, result_items: int, result_item: int) -> list[bool]:
    """Whether each distance, from 0 to the sum of both sizes, leaves every byte until it was read for the last time."""
    read = np.full(source_items * item, -1)
    written = np.full(result_items * result_item, np.iinfo(np.int64).max)
    for moment, event in enumerate(events):
        first, count = event[1], 1
        if event[0] != "write":
            count = event[3] if len(event) == 4 else 1
            read[first * item : (first + count) * item] = moment
        if event[0] != "read":
            first = event[2] if len(event) == 4 else first
            place = slice(first * result_item, (first + count) * result_item)
            written[place] = np.minimum(written[place], moment)
    safe = []
    for distance in range(len(read) + len(written) + 1):
        begin = len(read) - distance
        low, high = max(0, begin), min(len(read), begin + len(written))
        safe.append(not (read[low:high] >= written[low - begin : high - begin]).any() if low < high else True)
    return safe


def least_safe(events: Iterator[Event], source_items: int, item: int, result_items: int, result_item: int) -> int | None:
    """The least distance from which on all are safe; None where only that of separate buffers is."""
    safe = safe_distances(events, source_items, item, result_items, result_item)
    least = len(safe) - 1
    while least and safe[least - 1]:
        least -= 1
    return least if least < len(safe) - 1 else None
