"""Attributes of instructions as numbers: each raises an InputError that names the instruction where the text does not fit."""

from __future__ import annotations

import re
from typing import NamedTuple

from stowplan.frontends.hlo.module import Instruction
from stowplan.frontends.hlo.shape import excerpt

_CYCLES = re.compile(r'"estimated_cycles":"([0-9]{1,15})"')
_NUMBERS = re.compile(r"\{?\s*((?:-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*)?)\s*\}?")
_ONE_RANGE = r"\[[0-9]{1,18}:[0-9]{1,18}(?::[0-9]{1,18})?\]"
_RANGES = re.compile(rf"\{{\s*(?:{_ONE_RANGE}(?:\s*,\s*{_ONE_RANGE})*)?\s*\}}")
_RANGE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_LABELS = re.compile(r"([0-9bf?]+)_([0-9io?]+)->([0-9bf?]+)")
_SIZES = re.compile(r"[0-9]{1,18}(?:x[0-9]{1,18})*")
_PADS = re.compile(r"-?[0-9]{1,18}_-?[0-9]{1,18}(?:_[0-9]{1,18})?(?:x-?[0-9]{1,18}_-?[0-9]{1,18}(?:_[0-9]{1,18})?)*")


class Window(NamedTuple):
    """``window={size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=.. rhs_dilate=..}``, an entry a dimension."""

    size: list[int]
    stride: list[int]
    pad: list[tuple[int, int]]
    lhs_dilate: list[int]
    rhs_dilate: list[int]


def numbers(instruction: Instruction, name: str, *, below: int | None = None, needed: bool = True) -> list[int]:
    """Numbers of ``name={1,0}`` or ``name=1``; none where the attribute is missing and not ``needed``.

    Where ``below`` is given they are dimensions: different, from 0 up to before it.
    """
    text = instruction.attribute(name)
    if text is None:
        if needed:
            raise instruction.error(f"found no {name}, expected {name}={{...}}")
        return []
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise instruction.error(f"found {name}={excerpt(text)}, expected whole numbers")
    found = [int(each) for each in match[1].split(",")] if match[1] else []
    if below is not None and (len(set(found)) < len(found) or any(not 0 <= each < below for each in found)):
        raise instruction.error(f"found {name}={excerpt(text)}, expected different dimensions from 0 to {below - 1}")
    return found


def number(instruction: Instruction, name: str, *, below: int) -> int:
    """The one number of ``name=1``, from 0 up to before ``below``."""
    found = numbers(instruction, name)
    if len(found) != 1 or not 0 <= found[0] < below:
        raise instruction.error(f"found {name}={excerpt(str(instruction.attribute(name)))}, expected one number below {below}")
    return found[0]


def ranges(instruction: Instruction, rank: int) -> list[tuple[int, int, int]]:
    """(start, end, step) of each dimension of ``slice={[0:2], [1:10:2]}``."""
    text = instruction.attribute("slice")
    parts = _RANGE.findall(text) if text is not None and _RANGES.fullmatch(text) else []
    found = [(int(start), int(end), int(step or 1)) for start, end, step in parts]
    if text is None or len(found) != rank:
        raise instruction.error(f"found slice={excerpt(str(text))}, expected {rank} ranges such as {{[0:2], [1:10:2]}}")
    if any(step < 1 or start > end for start, end, step in found):
        raise instruction.error(f"found slice={excerpt(text)}, expected ranges that go upwards")
    return found


def padding(instruction: Instruction, rank: int) -> list[tuple[int, int, int]]:
    """(low, high, interior) of each dimension of ``padding=1_0_1x0_2``."""
    text = instruction.attribute("padding") or ""
    if not rank and not text:
        return []
    found = [tuple(map(int, part.split("_"))) for part in text.split("x")] if _PADS.fullmatch(text) else []
    if len(found) != rank:
        raise instruction.error(f"found padding={excerpt(text)}, expected {rank} parts low_high or low_high_interior")
    return [(part[0], part[1], part[2] if len(part) > 2 else 0) for part in found]


def window(instruction: Instruction, rank: int) -> Window:
    """The window over ``rank`` dimensions; what is left out is 1, of padding 0."""
    text = (instruction.attribute("window") or "{}").strip("{}")
    given: dict[str, str] = dict(part.split("=", 1) for part in text.split() if "=" in part)

    def sizes(name: str) -> list[int]:
        if name not in given:
            return [1] * rank
        found = [int(each) for each in given[name].split("x")] if _SIZES.fullmatch(given[name]) else []
        if len(found) != rank or any(each < 1 for each in found):
            raise instruction.error(f"found window {excerpt(text)}, expected {name} as {rank} positive numbers")
        return found

    pads = given.get("pad", "x".join(["0_0"] * rank))
    pairs = [tuple(map(int, part.split("_"))) for part in pads.split("x")] if _PADS.fullmatch(pads) else []
    if len(pairs) != rank:
        raise instruction.error(f"found window {excerpt(text)}, expected pad as {rank} parts low_high")
    return Window(
        sizes("size"), sizes("stride"), [(pair[0], pair[1]) for pair in pairs], sizes("lhs_dilate"), sizes("rhs_dilate")
    )


def convolution_labels(instruction: Instruction, left: int, right: int, result: int) -> tuple[str, str, str]:
    """``dim_labels=b01f_01io->b01f`` of operands and result of these ranks: batch, features, spatial dimensions."""
    text = instruction.attribute("dim_labels") or ""
    match = _LABELS.fullmatch(text)
    if match is None:
        raise instruction.error(f"found dim_labels {excerpt(text)}, expected some such as b01f_01io->b01f")
    for labels, rank, features in zip(match.groups(), (left, right, result), ("bf", "io", "bf"), strict=True):
        spatial = "".join(map(str, range(len(labels) - 2)))
        if len(labels) != rank or sorted(labels) != sorted(features + spatial):
            raise instruction.error(f"found dim_labels {excerpt(text)}, expected {rank} distinct labels in {excerpt(labels)}")
    if not left == right == result:
        raise instruction.error(f"found dim_labels {excerpt(text)}, expected as many for both operands and the result")
    return match[1], match[2], match[3]


def estimated_cycles(instruction: Instruction) -> int | None:
    """The compiler's estimate of one run, where the instruction carries one."""
    match = _CYCLES.search(instruction.attributes_text)
    return int(match[1]) if match else None
