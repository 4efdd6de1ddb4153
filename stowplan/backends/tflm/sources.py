"""Models as C++ sources, in the form that TensorFlow Lite Micro's own tools give them."""

from __future__ import annotations

import re
from collections.abc import Mapping


def names(stem: str) -> tuple[str, str]:
    """Name of the array and beginning of the constants' names, for files of this name without its ending."""
    base = re.sub(r"\W", "_", stem.removesuffix("_model_data"), flags=re.ASCII)
    return f"g_{base}_model_data", f"g_{base}_arena"


def source(stem: str, data: bytes) -> bytes:
    """The ``.cc`` file: the model as an aligned array."""
    values = ",".join(map(hex, data))
    array, _ = names(stem)
    return f'#include <cstdint>\n\n#include "{stem}.h"\n\nalignas(16) const unsigned char {array}[] = {{{values}}};\n'.encode()


def header(stem: str, data: bytes, sizes: Mapping[str, int]) -> bytes:
    """The ``.h`` file: the array's size, and sizes of the arena by what they are of (``head``; the whole arena is ``""``)."""
    array, arena = names(stem)
    lines = ["#pragma once", "", "#include <cstdint>", "", f"constexpr unsigned int {array}_size = {len(data)};"]
    for part, size in sizes.items():
        lines.append(f"constexpr unsigned int {arena}{f'_{part}' if part else ''}_size = {size};")
    return ("\n".join([*lines, f"extern const unsigned char {array}[];"]) + "\n").encode()
