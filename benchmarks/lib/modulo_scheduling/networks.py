"""Loop bodies of regular computations, in sizes to choose: sorting networks, small matrix products, stencils and others.

Every input is a stream that one instruction reads per iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.frontends.dfg.graph import Dfg
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable


class _Writer:
    """Collects the instructions of a loop body."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._variables: list[Variable] = []

    def read(self) -> Operand:
        """An instruction that reads a stream."""
        name = f"x{len(self._variables)}"
        self._variables.append(Variable(id=name, streams=True))
        return self.add("copy", Operand(variable=name))

    def add(self, operation: str, *operands: Operand) -> Operand:
        """An instruction; returns its result."""
        name = f"{operation}{len(self._instructions)}"
        self._instructions.append(Instruction(id=name, op=operation, operands=operands))
        return Operand(instruction=name)

    def sum(self, terms: Sequence[Operand]) -> Operand:
        """The sum of the terms, added one after the other."""
        total = terms[0]
        for term in terms[1:]:
            total = self.add("add", total, term)
        return total

    def graph(self, name: str) -> Dfg:
        return Dfg(name, tuple(self._instructions), tuple(self._variables))


def bitonic_sort(values: int) -> Dfg:
    """Batcher's bitonic sorting network (AFIPS 1968) for a power of two of values, with minima and maxima."""
    writer = _Writer()
    lane = [writer.read() for _ in range(values)]
    block = 2
    while block <= values:
        apart = block // 2
        while apart:
            before = list(lane)
            for low in range(values):
                high = low ^ apart
                if high > low:
                    pair = before[low], before[high]
                    ends = writer.add("min", *pair), writer.add("max", *pair)
                    lane[low], lane[high] = ends if low & block == 0 else ends[::-1]
            apart //= 2
        block *= 2
    return writer.graph(f"bitonic{values}")


def matrix_product(rows: int, columns: int, inner: int) -> Dfg:
    """The product of two matrices."""
    writer = _Writer()
    left = [[writer.read() for _ in range(inner)] for _ in range(rows)]
    right = [[writer.read() for _ in range(columns)] for _ in range(inner)]
    for row in range(rows):
        for column in range(columns):
            writer.sum([writer.add("mul", left[row][at], right[at][column]) for at in range(inner)])
    return writer.graph(f"matmul{rows}x{columns}x{inner}")


def stencil(results: int, radius: int) -> Dfg:
    """Neighbouring results of a one-dimensional stencil with constant coefficients."""
    writer = _Writer()
    line = [writer.read() for _ in range(results + 2 * radius)]
    for at in range(results):
        window = line[at : at + 2 * radius + 1]
        writer.sum([writer.add("mul", value, Operand(constant=float(place))) for place, value in enumerate(window)])
    return writer.graph(f"stencil{results}r{radius}")


def squared_distances(points: int) -> Dfg:
    """The squared distance of each pair of points on a line."""
    writer = _Writer()
    place = [writer.read() for _ in range(points)]
    for one in range(points):
        for two in range(one):
            difference = writer.add("sub", place[one], place[two])
            writer.add("mul", difference, difference)
    return writer.graph(f"distances{points}")


def lifting(samples: int, levels: int) -> Dfg:
    """Levels of a wavelet transform by lifting: details are predicted from even samples, which are then updated."""
    writer = _Writer()
    line = [writer.read() for _ in range(samples)]
    for _ in range(levels):
        even, odd = line[::2], line[1::2]
        details = [
            writer.add("sub", sample, writer.add("add", even[at], even[min(at + 1, len(even) - 1)]))
            for at, sample in enumerate(odd)
        ]
        line = [
            writer.add("add", sample, writer.add("add", details[max(at - 1, 0)], details[min(at, len(details) - 1)]))
            for at, sample in enumerate(even)
        ]
    return writer.graph(f"lifting{samples}x{levels}")


def families() -> dict[str, list[Dfg]]:
    """Graphs by family, each in three sizes."""
    return {
        "sorting networks": [bitonic_sort(values) for values in (4, 8, 16)],
        "matrix products": [matrix_product(*sizes) for sizes in ((3, 3, 2), (3, 3, 3), (4, 4, 3))],
        "stencils": [stencil(*sizes) for sizes in ((4, 1), (6, 2), (10, 2))],
        "distances": [squared_distances(points) for points in (4, 6, 8)],
        "wavelets": [lifting(*sizes) for sizes in ((8, 1), (16, 2), (32, 2))],
    }
