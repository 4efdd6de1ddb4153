"""The toy format: a file of numbers, one a line. Negative ones are read, but not modelled."""

from __future__ import annotations

from stowplan import files
from stowplan.errors import InputError
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.log import warn_unmodelled
from tests.toys.sums.problem import Problem


def _open(source: Source, options: ReadOptions) -> Opened:
    numbers = []
    for number, line in enumerate(files.read_text(source.path).splitlines(), 1):
        if line[:1] == "-":
            warn_unmodelled("negative numbers count as positive: sums may be too large", f"line {number}")
            line = line[1:]
        if not line.isdigit():
            raise InputError(f"found {line!r}, expected a number", source=source.path, place=f"line {number}")
        numbers.append(int(line))
    return Opened(Problem(numbers=tuple(numbers[: options.capacity]), name=source.path.stem))


FORMAT = InputFormat(
    what="a list of numbers",
    suffixes=(".numbers",),
    accepts=lambda source: frozenset({"capacity"}),
    matches=lambda source: source.path.suffix == ".numbers",
    open=_open,
)
