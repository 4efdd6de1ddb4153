"""Random programs with branches and loops, nested, as modules that torch exports, and that run without its operators too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan


def plain_cond(holds: Tensor, one: Callable[..., Any], other: Callable[..., Any], given: tuple[Tensor, ...]) -> Any:
    return (one if bool(holds) else other)(*given)


def plain_map(body: Callable[..., Tensor], rows: Tensor, *given: Tensor) -> Tensor:
    return torch.stack([body(row, *given) for row in rows])


def plain_scan(body: Callable[..., Any], carry: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for row in rows:
        carry, value = body(carry, row)
        found.append(value)
    return carry, torch.stack(found)


def source_of(seed: int) -> str:
    """A function of a weight and an input, both [4, 4], in Python: torch traces functions, and no random numbers of ours."""
    chance = random.Random(seed)
    lines = ["def program(w, x):"]
    number = 0

    def name() -> str:
        nonlocal number
        number += 1
        return f"v{number}"

    def body(indent: str, given: list[str], results: int, depth: int, rows: str = "") -> tuple[str, str]:
        """Define a function; returns its name."""
        function, arguments = f"f{name()}", [name() for _ in given]
        lines.append(f"{indent}def {function}({', '.join([rows] * bool(rows) + arguments)}):")
        inner = indent + "    "
        values = list(arguments)
        if rows:
            values.append(name())
            lines.append(f"{inner}{values[-1]} = {rows} * {arguments[0]}.view(2, 8).view(4, 4)")
        block(inner, values, chance.randint(1, 2), depth - 1)
        ends = [f"torch.tanh({values[-1 - at % len(values)]} * {at + 2} + 0.25)" for at in range(results)]
        return function, f"{inner}return {', '.join(ends)}"

    def block(indent: str, values: list[str], steps: int, depth: int) -> None:
        for _ in range(steps):
            kind = chance.choice(["cond", "cond", "cond", "map", "scan", "plain", "view"] if depth else ["plain", "view"])
            # Nothing may be given twice.
            one, other = chance.sample(values, 2) if len(values) > 1 else values * 2
            kind, result = kind if len(values) > 1 else "plain", name()
            if kind == "cond":
                results = chance.randint(1, 2)
                functions = []
                for _ in range(2):
                    function, end = body(indent, [one, other], results, depth)
                    lines.append(end + "," * (results == 1))
                    functions.append(function)
                names = [result] + [name() for _ in range(results - 1)]
                holds = f"{one}[{chance.randrange(4)}, {chance.randrange(4)}] > {chance.choice([-0.1, 0.0, 0.1])}"
                lines.append(f"{indent}{', '.join(names)}{',' * (results == 1)} = "
                             f"cond({holds}, {', '.join(functions)}, ({one}, {other}))")  # fmt: skip
                values += names
            elif kind == "map":
                function, end = body(indent, [other], 1, depth, rows="row")
                lines.append(end)
                lines.append(f"{indent}{result} = map_({function}, {one}, {other}).sum(1) + 0.5")
                values.append(result)
            elif kind == "scan":
                function, end = body(indent, [other], 1, depth, rows="row")
                lines.append(end)
                turn = name()
                lines.append(f"{indent}def {turn}(carry, row):")
                lines.append(f"{indent}    value = {function}(row, carry)")
                lines.append(f"{indent}    return value * 1.0, (value - row).sum(0)")
                last, every = name(), name()
                lines.append(f"{indent}{last}, {every} = scan({turn}, {other}, {one})")
                lines.append(f"{indent}{result} = {last} * 0.5 + {every}")
                values.append(result)
            elif kind == "view":
                lines.append(f"{indent}{result} = torch.tanh({one}.view(16) * 1.5).view(2, 8).view(4, 4)")
                values.append(result)
            else:
                lines.append(f"{indent}{result} = torch.tanh({one} @ w + {other} * {chance.choice([1, 2])})")
                values.append(result)

    values = ["x"]
    block("    ", values, chance.randint(3, 5), chance.choice([1, 1, 2]))
    ends = [f"{value} + 1.0" for value in values[-chance.randint(1, 3) :]]
    return "\n".join([*lines, f"    return ({', '.join(ends)},)"])


class RandomProgram(nn.Module):
    """The program of a seed; with ``is_plain`` it is run by Python's own branches and loops."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(4, 4) * 0.4, requires_grad=False)
        self.is_plain = False
        code = compile(source_of(seed), f"program {seed}", "exec")
        traced: dict[str, Any] = {"torch": torch, "cond": torch.cond, "map_": torch_map, "scan": torch_scan}
        plain: dict[str, Any] = {"torch": torch, "cond": plain_cond, "map_": plain_map, "scan": plain_scan}
        exec(code, traced)
        exec(code, plain)
        self.traced, self.plain = traced["program"], plain["program"]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = (self.plain if self.is_plain else self.traced)(self.weight, x)
        return found


def graphs(module: Any) -> int:
    """How many graphs a program has."""
    return sum(isinstance(each, torch.fx.GraphModule) for each in module.modules())
