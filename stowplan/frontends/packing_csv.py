"""Lists of buffers among the inputs: a CSV file becomes a packing problem."""

from __future__ import annotations

from stowplan.frontends.format import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.models.packing import csv_files


def _open(source: Source, options: ReadOptions) -> Opened:
    return Opened(csv_files.read_problem(source.path, options.capacity))


FORMAT = InputFormat(
    what="a list of buffers to pack",
    suffixes=(".csv",),
    accepts=lambda source: frozenset({"capacity"}),
    matches=lambda source: source.data is None and csv_files.is_packing_csv(source.path),
    open=_open,
)
