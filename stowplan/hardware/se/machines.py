"""Machines by name, and grids of one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.se.operations import OPERATIONS
from stowplan.models.modulo_scheduling.machine import Link, Machine

#: A machine file is a page of text; anything longer is not one.
MAX_MACHINE_BYTES = 1 << 20


def streaming_engine(tiles: int = 16, latency: int = 3) -> Machine:
    """The Streaming Engine: a row of tiles with links one and two tiles up and down.

    Source: "Reinforcement learning approach for mapping applications to dataflow-based coarse-grained reconfigurable array"
    (arXiv 2205.13675), section 2. The depths of instruction and spoke RAM are not stated there.
    """
    links = (
        Link(name="up1", rows=-1, clocks=1),
        Link(name="up2", rows=-2, clocks=2),
        Link(name="down1", rows=1, clocks=1),
        Link(name="down2", rows=2, clocks=2),
    )
    name = "streaming-engine" + (f"-{tiles}" if tiles != 16 else "") + (f"-latency-{latency}" if latency != 3 else "")
    return Machine(name=name, rows=tiles, links=links, latency=latency, operations=OPERATIONS)


def grid(rows: int, columns: int, *, wraps: bool = False, latency: int = 1, clocks: int = 0) -> Machine:
    """A mesh, or with ``wraps`` a torus: each tile reaches its four neighbours.

    By default as most CGRA mappers of the field assume: results are in a register that the neighbours read in the next clock.
    """
    links = (
        Link(name="north", rows=-1, columns=0, clocks=clocks),
        Link(name="east", rows=0, columns=1, clocks=clocks),
        Link(name="south", rows=1, columns=0, clocks=clocks),
        Link(name="west", rows=0, columns=-1, clocks=clocks),
    )
    name = f"{'torus' if wraps else 'mesh'}-{rows}x{columns}"
    return Machine(name=name, rows=rows, columns=columns, links=links, wraps=wraps, latency=latency, operations=OPERATIONS)


#: Sides of the square grids with a name.
_SIDES = (2, 3, 4, 5)

_NAMED: dict[str, Callable[[], Machine]] = {
    "streaming-engine": streaming_engine,
    "streaming-engine-latency-4": partial(streaming_engine, latency=4),
    **{f"torus-{n}x{n}": partial(grid, n, n, wraps=True) for n in _SIDES},
    **{f"mesh-{n}x{n}": partial(grid, n, n) for n in _SIDES},
}


def machine_names() -> tuple[str, ...]:
    """Names of the machines that come with the package, sorted."""
    return tuple(sorted(_NAMED))


def load_machine(name_or_path: str | Path) -> Machine:
    """Machine of this name, or from a TOML or JSON file of this path, with the fields of ``Machine``.

    Raises
    ------
    InputError
        An unknown name (the message lists the known ones), a missing file, a field that is missing, unknown or out of range.
    """
    if isinstance(name_or_path, str) and name_or_path in _NAMED:
        return _NAMED[name_or_path]()
    text = str(name_or_path)
    if isinstance(name_or_path, str) and not text.endswith((".toml", ".json")) and "/" not in text and "\\" not in text:
        raise InputError(f"found machine {text!r}, expected one of {', '.join(machine_names())}, or the path of a file")
    data = files.read_bytes(name_or_path, MAX_MACHINE_BYTES)
    try:
        if text.endswith(".json"):
            return msgspec.json.decode(data, type=Machine)
        return msgspec.toml.decode(data, type=Machine)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=name_or_path, place=path.rstrip("`").removeprefix("$.") or None) from error
    except InputError as error:
        raise error.within(name_or_path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not a machine file: {error}", source=name_or_path) from error
