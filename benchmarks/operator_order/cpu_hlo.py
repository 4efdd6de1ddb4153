"""Least peaks of JAX programs on the CPU, against what XLA itself takes for them.

    python -m benchmarks.operator_order.cpu_hlo --time-limit 20 -o results.json

Each program is compiled by JAX for the CPU. XLA's figure is its ``memory_analysis()``: arguments + outputs - aliased +
temporaries. Ours is the peak of ``stowplan solve --target order`` for the scheduled module that XLA compiled, and its bound:
the most bytes live at once, with the parameters that the caller keeps, without constants, which XLA's figure leaves out, too.
*Given* is the peak of XLA's own order under our rules. JAX has to be installed (``pip install 'jax>=0.10,<0.13'``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import stowplan


class Program(NamedTuple):
    """A function of JAX with the shapes of its arguments."""

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    """A tuple of sizes of 32-bit floats, or (sizes, type)."""
    donated: tuple[int, ...] = ()
    """Arguments that the caller gives away."""


def programs() -> dict[str, Program]:
    """The programs by name."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def network(w1: Any, w2: Any, x: Any) -> Any:
        return jnp.tanh(x @ w1) @ w2

    def loss(w1: Any, w2: Any, x: Any, y: Any) -> Any:
        return ((network(w1, w2, x) - y) ** 2).mean()

    def step(w1: Any, w2: Any, x: Any, y: Any) -> Any:
        slopes = jax.grad(loss, (0, 1))(w1, w2, x, y)
        return w1 - 0.1 * slopes[0], w2 - 0.1 * slopes[1]

    def accumulate(w: Any, batches: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return total + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w), None

        return lax.scan(add, jnp.zeros_like(w), batches)[0]

    def loop(x: Any) -> Any:
        def body(carried: Any) -> Any:
            x, _, total = carried
            return jnp.cos(x @ x) * 0.1, jnp.abs(x).max() * 0.5, total + x

        return lax.while_loop(lambda carried: carried[1] > 1e-3, body, (x, jnp.float32(1), x * 0))

    def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - m / (jnp.sqrt(v) + 1e-8), m, v

    def normalise(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + shift

    def attend(x: Any, q: Any, k: Any, v: Any) -> Any:
        scores = jnp.where(jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)), (x @ q) @ (x @ k).T, -1e9)
        return jax.nn.softmax(scores) @ (x @ v)

    def convolve(x: Any, w1: Any, w2: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        for w in (w1, w2):
            x = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
        return x.mean((1, 2))

    def update_cache(cache: Any, new: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, jnp.tanh(new), (at, 0))

    def embed(table: Any, words: Any, w: Any) -> Any:
        return jax.grad(lambda table: (jnp.tanh(table[words]) @ w).sum())(table)

    square, whole = (128, 128), "int32"
    return {
        "mlp forward": Program(network, (square, square, (64, 128))),
        "mlp step, donated": Program(step, (square, square, (64, 128), (64, 128)), (0, 1)),
        "accumulated gradients": Program(accumulate, (square, (8, 32, 128))),
        "while loop": Program(loop, (square,)),
        "Adam, donated": Program(adam, ((1024, 64),) * 4, (0, 1, 2)),
        "softmax": Program(lambda x: jax.nn.softmax(x * 2.0), ((512, 512),)),
        "layer norm": Program(normalise, ((512, 256), (256,), (256,))),
        "attention": Program(attend, ((128, 64), (64, 64), (64, 64), (64, 64))),
        "convolutions": Program(convolve, ((4, 32, 32, 8), (3, 3, 8, 16), (3, 3, 16, 16))),
        "cache update, donated": Program(update_cache, ((1024, 64), (1, 64), ((), whole)), (0,)),
        "cumulative sum": Program(lambda x: jnp.cumsum(jnp.exp(x), 0), (square,)),
        "sort": Program(lambda x: jnp.sort(x * 2.0, axis=0), (square,)),
        "embedding gradient": Program(embed, ((1000, 64), ((256,), whole), (64, 64))),
        "matrix products": Program(lambda a, b, c: jnp.sin(jnp.cos(a @ b) @ c) @ b, (square,) * 3),
    }


def row(name: str, program: Program, time_limit: float, folder: Path | None) -> dict[str, Any]:
    """XLA's bytes of a program and ours; the module stays in ``folder``."""
    import jax

    arguments = [
        jax.ShapeDtypeStruct(*shape) if shape and isinstance(shape[-1], str) else jax.ShapeDtypeStruct(shape, "float32")
        for shape in program.shapes
    ]
    compiled = jax.jit(program.function, donate_argnums=program.donated).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    with tempfile.TemporaryDirectory() as temporary:
        path = (folder or Path(temporary)) / f"{name.replace(', ', '_').replace(' ', '_')}.hlo"
        path.write_text(compiled.as_text(), encoding="utf-8")
        result = stowplan.solve(stowplan.read(path, target="order"), time_limit=time_limit)
    assert result.objective is not None
    return {
        "name": name,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "xla": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "given": result.baselines["given"],
        "ours": result.objective,
        "bound": result.bound,
        "status": result.status,
        "in_place": result.details["in_place"],
    }


COLUMNS = ("arguments", "outputs", "aliased", "temporaries", "xla", "given", "ours", "bound")


def main() -> None:
    """Compile and solve all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--dump", type=Path, help="folder that the modules are written to, as XLA compiled them")
    parser.add_argument("-o", "--output", type=Path, help="rows as JSON")
    arguments = parser.parse_args()
    print("| program | " + " | ".join(COLUMNS) + " | status |")
    print("|---" + "|--:" * len(COLUMNS) + "|---|", flush=True)
    rows = []
    for name, program in programs().items():
        if arguments.only in name:
            rows.append(row(name, program, arguments.time_limit, arguments.dump))
            cells = [f"{rows[-1][column]:,}" for column in COLUMNS]
            print(f"| {name} | " + " | ".join(cells) + f" | {rows[-1]['status']} |", flush=True)
    above = [each["name"] for each in rows if each["ours"] > each["xla"]]
    print(f"{len(above)} of {len(rows)} above XLA's own: {', '.join(above) or 'none'}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
