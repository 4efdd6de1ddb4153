"""Training graphs and random layered graphs to measure on; and Moccasin's files."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from stowplan.models.rematerialization.problem import Op, Problem, Tensor


class Tape:
    """Forward operators as they are written; :meth:`problem` adds the backward ones, the last first."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.inputs: list[int] = []
        self._tape: list[tuple[tuple[int, ...], int, tuple[int, ...], int]] = []

    def tensor(self, size: int) -> int:
        """A new tensor of so many bytes."""
        self.tensors.append(Tensor(id=f"t{len(self.tensors)}", size=size))
        return len(self.tensors) - 1

    def weight(self, size: int) -> int:
        """An input that is there all the time."""
        self.inputs.append(self.tensor(size))
        return self.inputs[-1]

    def run(self, kind: str, reads: tuple[int, ...], size: int, cost: int | None = None, saved: tuple[int, ...] = ()) -> int:
        """An operator; ``saved`` are those of its operands, or -1 for its result, that its backward operators read."""
        out = self.tensor(size)
        cost = (size + sum(self.tensors[each].size for each in reads)) // 4 if cost is None else cost
        self.ops.append(Op(id=f"{kind}{len(self.ops)}", reads=tuple(dict.fromkeys(reads)), writes=(out,), cost=cost, kind=kind))
        self._tape.append((reads, out, tuple(out if each == -1 else each for each in saved), cost))
        return out

    def problem(self, name: str, loss: int) -> Problem:
        """Forward and backward; gradients of weights stay, inputs do, too."""
        weights = {*self.inputs}
        grad: dict[int, int] = {loss: loss}
        for reads, out, saved, cost in reversed(self._tape.copy()):
            if out not in grad:
                continue
            for each in reads:
                kind = "backward"
                new = self.tensor(self.tensors[each].size)
                needs = tuple(dict.fromkeys((grad[out], *(one for one in saved if one != each or len(reads) == 1))))
                self.ops.append(Op(id=f"{kind}{len(self.ops)}", reads=needs, writes=(new,), cost=cost, kind=kind))
                if each in grad:
                    both, total = (grad[each], new), self.tensor(self.tensors[each].size)
                    pair = ((new, total),)
                    size = self.tensors[each].size
                    self.ops.append(
                        Op(id=f"sum{len(self.ops)}", reads=both, writes=(total,), in_place=pair, cost=size // 2, kind="sum")
                    )
                    new = total
                grad[each] = new
        return Problem(
            name=name,
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            inputs=tuple(self.inputs),
            outputs=tuple(grad[each] for each in sorted(weights) if each in grad),
            free_inputs=False,
        )


def transformer(layers: int, width: int = 256, tokens: int = 512) -> Problem:
    """A step of a Llama: normalisation in its parts, attention as one operator, a gated MLP."""
    tape, act, square = Tape(), 4 * width * tokens, 4 * width * width
    matmul = 2 * tokens * width * width // 64

    def norm(x: int) -> int:
        power = tape.run("pow", (x,), act, saved=(x,))
        mean = tape.run("mean", (power,), 4 * tokens)
        root = tape.run("rsqrt", (mean,), 4 * tokens, saved=(-1,))
        scaled = tape.run("mul", (x, root), act, saved=(x, root))
        weight = tape.weight(4 * width)
        return tape.run("mul", (scaled, weight), act, saved=(scaled, weight))

    def linear(x: int, times: int = 1, back: int = 1) -> int:
        weight = tape.weight(square * times * back)
        size = act * times
        return tape.run("mm", (x, weight), size, matmul * times * back, saved=(x, weight))

    def rotate(x: int) -> int:
        half = tape.run("rotate", (x,), act)
        return tape.run("add", (tape.run("mul", (x,), act), tape.run("mul", (half,), act)), act)

    x = tape.weight(act)
    for _ in range(layers):
        y = norm(x)
        q, k, v = rotate(linear(y)), rotate(linear(y)), linear(y)
        attention = tape.run("attention", (q, k, v), act, 4 * tokens * tokens * width // 64, saved=(q, k, v, -1))
        x = tape.run("add", (x, linear(attention)), act)
        y = norm(x)
        gate = linear(y, 3)
        sigmoid = tape.run("sigmoid", (gate,), 3 * act, saved=(-1,))
        silu = tape.run("mul", (gate, sigmoid), 3 * act, saved=(gate, sigmoid))
        up = linear(y, 3)
        inner = tape.run("mul", (silu, up), 3 * act, saved=(silu, up))
        x = tape.run("add", (x, linear(inner, 1, 3)), act)
    loss = tape.run("loss", (norm(x),), 4)
    return tape.problem(f"transformer {layers}", loss)


def layered(count: int, seed: int = 0) -> Problem:
    """Random layers of operators, each reading some of the layers right before (after Gagrani et al. 2022, appendix A)."""
    chance = random.Random(seed)
    rows: list[list[int]] = [[0]]
    while sum(map(len, rows)) < count - 1:
        width = max(1, round(chance.gauss(0.31 * math.sqrt(count), 0.75)) + chance.randint(0, 3))
        first = sum(map(len, rows))
        rows.append(list(range(first, min(count - 1, first + width))))
    rows.append([count - 1])
    reads: list[set[int]] = [set() for _ in range(count)]
    for at, row in enumerate(rows[1:], 1):
        for op in row:
            reads[op] = {chance.choice(rows[at - 1])}
            before = [each for each in rows[at - 1] if chance.random() < 0.2]
            reads[op] |= {*before, *(each for old in rows[max(0, at - 8) : at - 1] for each in old if chance.random() < 0.05)}
    tensors = tuple(Tensor(id=f"t{each}", size=chance.randint(1, 50) * 100) for each in range(count))
    ops = tuple(
        Op(id=f"n{each}", reads=tuple(sorted(reads[each])), writes=(each,), cost=chance.randint(0, 1000))
        for each in range(count)
    )
    return Problem(name=f"layered {count}", tensors=tensors, ops=ops)


def networkx(path: Path) -> Problem:
    """A graph as Moccasin and networkx write it, in the order that Moccasin takes."""
    found = json.loads(path.read_text())
    is_layered = found["graph"].get("name", "").startswith("random_layered")
    names = [node["name" if is_layered else "id"] for node in found["nodes"]]
    index = {name: at for at, name in enumerate(names)}
    ends = ("0", "1") if is_layered else ("source", "target")
    edges = [(index[each[ends[0]]], index[each[ends[1]]]) for each in found["links"]]
    before: dict[int, set[int]] = {at: set() for at in range(len(names))}
    for one, other in edges:
        before[other].add(one)
    given = found["graph"].get("order")
    order = kahn(len(names), edges) if given is None else [index[each] for each in given]
    place = {op: at for at, op in enumerate(order)}
    size, cost = ("out_cost", "duration") if is_layered else ("cost_ram", "cost_cpu")
    assert all(place[one] < place[other] for one, other in edges)
    return Problem(
        name=found["graph"].get("name", path.stem),
        tensors=tuple(Tensor(id=f"{names[op]}", size=found["nodes"][op][size]) for op in order),
        ops=tuple(
            Op(
                id=f"{names[op]}",
                reads=tuple(sorted(place[each] for each in before[op])),
                writes=(at,),
                cost=found["nodes"][op][cost],
            )
            for at, op in enumerate(order)
        ),
    )


def kahn(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The order of networkx's ``topological_sort``: generation by generation."""
    following: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for one, other in edges:
        following[one].append(other)
        waits[other] += 1
    order, now = [], [at for at in range(count) if not waits[at]]
    while now:
        after = []
        for op in now:
            order.append(op)
            for each in following[op]:
                waits[each] -= 1
                if not waits[each]:
                    after.append(each)
        now = after
    return order
