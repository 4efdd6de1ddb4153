"""Machines by name, and functions that describe them: the Streaming Engine, grids of any size, and the arrays of two mappers.

A machine (:class:`~stowplan.models.modulo_scheduling.machine.Machine`) is a grid of equal tiles with links between them. A
*mapper* is a compiler for such arrays; the two are SAT-MapIt and Morpher, which are published with their code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from stowplan.hardware.se.reference import OPERATIONS
from stowplan.hardware.targets.toml_files import TargetFiles
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric, Interface, Link, Machine, Registers


def streaming_engine(tiles: int = 16, latency: int = 3) -> Machine:
    """Describes the Streaming Engine: a column of tiles with links to the tiles one and two positions above and below.

    Source: "Reinforcement learning approach for mapping applications to dataflow-based coarse-grained reconfigurable array"
    (arXiv 2205.13675), section 2. The paper does not state the sizes of a tile's *instruction RAM*, which has its instructions,
    and of its *spoke RAM*, which says which of them the tile executes in each slot. It does not state the latencies of the
    *asynchronous fabric* either, the network that carries values from any tile to any other and to memory. The numbers of this
    machine are assumptions.

    Parameters
    ----------
    tiles
        Number of tiles.
    latency
        Clocks from the start of an instruction to its result.
    """
    links = (
        Link(name="up1", rows=-1, clocks=1),
        Link(name="up2", rows=-2, clocks=2),
        Link(name="down1", rows=1, clocks=1),
        Link(name="down2", rows=2, clocks=2),
    )
    name = "se" + (f"-{tiles}" if tiles != 16 else "") + (f"-latency-{latency}" if latency != 3 else "")
    fabric = AsynchronousFabric(interfaces=tuple(Interface(name=f"mi{number}") for number in range(4)))
    return Machine(name=name, rows=tiles, links=links, latency=latency, operations=OPERATIONS, asynchronous=fabric)


def grid(rows: int, columns: int, *, wraps: bool = False, latency: int = 1, clocks: int = 0) -> Machine:
    """Describes a grid in which each tile has links to its four neighbours: a mesh, or, with ``wraps``, a torus.

    By default, a result is in a register that the neighbours can read in the next clock, as most CGRA mappers in the literature
    assume.

    Parameters
    ----------
    rows, columns
        Numbers of rows and columns of tiles.
    wraps
        Whether links also connect opposite edges.
    latency
        Clocks from the start of an instruction to its result.
    clocks
        Clocks that a value takes over a link.
    """
    links = (
        Link(name="north", rows=-1, columns=0, clocks=clocks),
        Link(name="east", rows=0, columns=1, clocks=clocks),
        Link(name="south", rows=1, columns=0, clocks=clocks),
        Link(name="west", rows=0, columns=-1, clocks=clocks),
    )
    name = f"{'torus' if wraps else 'mesh'}-{rows}x{columns}"
    return Machine(name=name, rows=rows, columns=columns, links=links, wraps=wraps, latency=latency, operations=OPERATIONS)


def satmapit(rows: int, columns: int) -> Machine:
    """Describes the torus for which SAT-MapIt maps: neighbours can read only the last result of a tile, and the tile itself can
    also read earlier results.

    Source: the constraints of SAT-MapIt's code (github.com/CristianTirelli/SAT-MapIt-Lite), and Tirelli et al., "SAT-MapIt: A
    SAT-based Modulo Scheduling Mapper for Coarse Grain Reconfigurable Architectures" (DATE 2023). The mapper itself does not
    limit the registers of a tile, so neither does this machine.
    """
    registers = Registers(output=True)
    return msgspec.structs.replace(grid(rows, columns, wraps=True), name=f"satmapit-{rows}x{columns}", registers=registers)


def _morpher(name: str, hops: int) -> Machine:
    """A 4 x 4 grid of Morpher in which a value crosses up to ``hops`` tiles in a clock, with memory in the first column.

    Every tile has a link to every other tile. A value needs ``ceil(distance / hops)`` clocks for the way, where the distance is
    the number of rows plus the number of columns. The clock in which the consumer reads the value is one of them, so the link
    itself takes one clock less. Wires that two values would share on their routes are not modelled, and neither are the
    registers in which values wait.
    """
    side = range(-3, 4)
    links = tuple(
        Link(name=f"r{down:+}c{right:+}", rows=down, columns=right, clocks=-(-(abs(down) + abs(right)) // hops) - 1)
        for down in side
        for right in side
        if (down, right) != (0, 0)
    )
    memory = (0, 4, 8, 12)
    return Machine(name=name, rows=4, columns=4, links=links, latency=1, operations=OPERATIONS, memory_tiles=memory)


def adres() -> Machine:
    """Describes the 4 x 4 mesh of Morpher's ``stdnoc.json``, which follows ADRES: a value crosses one tile in a clock.

    Source: github.com/ecolab-nus/Morpher_CGRA_Mapper, ``json_arch/stdnoc.json``.
    """
    return _morpher("adres-4x4", 1)


def hycube() -> Machine:
    """Describes the 4 x 4 HyCUBE of Morpher's ``hycube_original.json``: a value crosses up to four tiles in a clock.

    Source: github.com/ecolab-nus/Morpher_CGRA_Mapper; Karunaratne et al., "HyCUBE: A CGRA with Reconfigurable Single-cycle
    Multi-hop Interconnect" (DAC 2017).
    """
    return _morpher("hycube-4x4", 4)


#: Numbers of rows of the square grids that have names.
_SIDES = (2, 3, 4, 5)

#: Functions that describe the machines of this package, by their short names.
_NAMED: dict[str, Callable[[], Machine]] = {
    "se": streaming_engine,
    "se-latency-4": partial(streaming_engine, latency=4),
    **{f"torus-{n}x{n}": partial(grid, n, n, wraps=True) for n in _SIDES},
    **{f"mesh-{n}x{n}": partial(grid, n, n) for n in _SIDES},
    **{f"satmapit-{n}x{n}": partial(satmapit, n, n) for n in _SIDES},
    "adres-4x4": adres,
    "hycube-4x4": hycube,
}

#: The short name for each long name of a machine. Input may have long names everywhere; the name in a machine is the short one.
_LONG_NAMES = {"streaming-engine": "se", "streaming-engine-latency-4": "se-latency-4"}


_FILES = TargetFiles(
    Machine, __name__.rpartition(".")[0], None, noun="machine", formless="a machine with tiles", builders=_NAMED
)

machine_names = _FILES.names


#: Descriptions of the machines of the mapper Morpher.
_FOREIGN = {
    "adres-4x4": "mesh of processing elements (tiles) like that of ADRES, a coarse-grained reconfigurable array (CGRA), as the "
    "mapper Morpher models it: a value crosses one tile per clock; loads and stores are in the first column",
    "hycube-4x4": "the CGRA HyCUBE, as the mapper Morpher models it: a value crosses up to four tiles per clock; "
    "loads and stores are in the first column",
}


def is_machine_name(name: str) -> bool:
    """Whether this is the short or long name of a machine of this package."""
    return name in _NAMED or name in _LONG_NAMES


def describe_machine(name: str) -> str:
    """A short description of the machine of this package with this short name, for lists of machines."""
    long = next((long_name for long_name, short in _LONG_NAMES.items() if short == name), None)
    if long is not None:
        return (
            "Streaming Engine, a published CGRA: a column of tiles with links to the tiles one and two positions away; "
            f"{long} is another name of this target"
        )
    if name in _FOREIGN:
        return _FOREIGN[name]
    if name.startswith("satmapit"):
        return "torus, as the mapper SAT-MapIt models it: a tile reads only the last result of each neighbour"
    across = ", also across the edges of the array" if name.startswith("torus") else ""
    return f"each tile has links to the tiles above, below, left and right of it{across}"


def load_machine(name_or_path: str | Path) -> Machine:
    """Loads the machine with this short or long name, or from a TOML or JSON file with this path.

    The file has the fields of :class:`~stowplan.models.modulo_scheduling.machine.Machine`.

    Raises
    ------
    InputError
        There is no machine with this name (the message lists the names); the file does not exist; or a field is missing,
        unknown or out of range.
    """
    if isinstance(name_or_path, str):
        name_or_path = _LONG_NAMES.get(name_or_path, name_or_path)
    return _FILES.load(name_or_path)
