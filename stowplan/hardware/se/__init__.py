"""The Streaming Engine and its relatives: machines as data, tables for the hardware, and a simulator of the clock cycles.

Each file knows only those before it:

- ``configuration``: the tables that program the tiles
- ``reference``: a loop body run in NumPy, iteration by iteration, as the graph says
- ``machines``: machines by name, and grids of one's own
- ``simulator``: runs configured tiles clock by clock on real numbers
"""

from stowplan.hardware.se.configuration import Configuration, configure
from stowplan.hardware.se.machines import grid, load_machine, machine_names, streaming_engine
from stowplan.hardware.se.reference import run_graph
from stowplan.hardware.se.simulator import Run, compare, simulate

__all__ = [
    "Configuration",
    "Run",
    "compare",
    "configure",
    "grid",
    "load_machine",
    "machine_names",
    "run_graph",
    "simulate",
    "streaming_engine",
]
