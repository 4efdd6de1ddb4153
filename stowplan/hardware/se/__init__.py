"""The Streaming Engine and other arrays of tiles: descriptions of machines, the tables that program them, and a simulator.

A *tile* is a processing element of a coarse-grained reconfigurable array (CGRA). Each module imports only modules that are
listed before it:

- ``configuration``: the tables that program the tiles
- ``reference``: results of a loop body's graph, computed in NumPy for comparison with the simulator
- ``machines``: machines by name, and grids of any size
- ``simulator``: simulates configured tiles clock by clock, with numbers
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
