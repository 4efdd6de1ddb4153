"""Why compiled gradients differ between policies of ``jax.checkpoint``, told apart on the CPU.

    python -m benchmarks.jax_fit.rounding --results FILE
    python -m benchmarks.jax_fit.rounding --results FILE --print

A scanned Llama and an unrolled GPT, small, with numbers. Each is differentiated as it is and under policies, in four ways:
operator by operator; compiled in float32; compiled in bfloat16; compiled in bfloat16 with
``xla_allow_excess_precision=false``, by which XLA keeps the roundings that the program has. Then, of the scanned one, one value
alone is saved beside everything made again, for each value that has a name: whose operators' results change gradients.

A difference is the largest of all gradients, each relative to the largest number in that gradient. Needs jax.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.jax_fit import programs
from benchmarks.lib.tables import table
from stowplan.backends.jax import Policy, with_policy
from stowplan.backends.jax.graph import plan
from stowplan.hardware.targets import load_target

#: Name, layer, whether it is scanned.
LOSSES = (("llama_scanned", programs.llama_layer, True), ("gpt_unrolled", programs.gpt_layer, False))

#: Dtype, whether it is compiled, options of the compile.
WAYS: tuple[tuple[str, str, bool, dict[str, Any]], ...] = (
    ("operator by operator", "bfloat16", False, {}),
    ("compiled, float32", "float32", True, {}),
    ("compiled, bfloat16", "bfloat16", True, {}),
    ("compiled, bfloat16, no excess precision", "bfloat16", True, {"xla_allow_excess_precision": False}),
)

#: Parts of what is saved without a policy that plans may save.
PARTS = (0.1, 0.2, 0.4, 0.6, 0.8)

_LAYERS, _WIDTH, _WORDS = 2, 64, 256


def arguments(dtype: str, is_gated: bool) -> Any:
    """Parameters and tokens, from a fixed seed."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    chance = np.random.default_rng(0)

    def filled(path: Any, shape: Any) -> Any:
        if jnp.issubdtype(shape.dtype, jnp.integer):
            return jnp.asarray(chance.integers(0, _WORDS, shape.shape), shape.dtype)
        scale = 1.0 if "n1" in str(path) or "n2" in str(path) else 0.1
        return jnp.asarray(chance.normal(0, scale, shape.shape), shape.dtype)

    return jax.tree_util.tree_map_with_path(
        filled, programs.shapes(_LAYERS, _WIDTH, 2 * _WIDTH, 4, 32, _WORDS, is_gated, dtype)
    )


def gradients(function: Any, given: Any, is_compiled: bool, options: dict[str, Any]) -> list[Any]:
    """Of one float, by all parameters."""
    import jax
    import numpy as np

    differentiated = jax.grad(function)
    if is_compiled:
        found = jax.jit(differentiated).lower(*given).compile(compiler_options=options)(*given)
    else:
        with jax.disable_jit():
            found = differentiated(*given)
    return [np.asarray(leaf, "float64") for leaf in jax.tree.leaves(found)]


def difference(found: list[Any], expected: list[Any]) -> float:
    """The largest, relative to the largest number of the gradient that it is in."""
    import numpy as np

    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in zip(found, expected, strict=True))


def rows(name: str, layer: Any, is_scanned: bool) -> Iterator[dict[str, Any]]:
    """One for each way and policy, then one for each value saved alone."""
    from stowplan.backends.jax.program import Loss

    loss = partial(programs._loss, partial(layer, heads=4), is_scanned)
    given = arguments("bfloat16", layer is programs.llama_layer)
    graphs = Loss(loss, given).graphs(load_target("tpu-v5e").roofline)
    needed = sum(graph.needed_bytes for graph in graphs)
    plans = {part: plan(graphs, int(part * needed)).saved for part in PARTS}
    policies = {"everything_again": Policy("everything_again"), "dots": Policy("dots")}
    policies |= {f"planned {part}": Policy("planned", saved) for part, saved in plans.items() if saved}
    exact = gradients(loss, arguments("float32", layer is programs.llama_layer), True, {})
    for way, dtype, is_compiled, options in WAYS:
        given = arguments(dtype, layer is programs.llama_layer)
        expected = gradients(loss, given, is_compiled, options)
        row = {"program": name, "way": way}
        yield row | {"policy": "as_it_is", "difference": 0.0, "from_float32": difference(expected, exact)}
        for kind, policy in policies.items():
            found = gradients(with_policy(loss, policy), given, is_compiled, options)
            yield row | {
                "policy": kind,
                "difference": difference(found, expected),
                "from_float32": difference(found, exact),
            }
    if not is_scanned:
        return
    given = arguments("bfloat16", layer is programs.llama_layer)
    base = gradients(with_policy(loss, Policy("everything_again")), given, True, {})
    for node in (node for graph in graphs for node in graph.nodes if node.name):
        found = gradients(with_policy(loss, Policy("planned", (node.name,))), given, True, {})
        yield {
            "program": name,
            "way": "one value saved",
            "policy": node.line.split(" /")[0],
            "difference": difference(found, base),
        }


def show(found: list[dict[str, Any]]) -> None:
    """Ways by their largest difference; then values saved alone, by what made them."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        if row["way"] != "one value saved":
            groups.setdefault((row["program"], row["way"]), []).append(row)
    print(
        table(
            [
                (
                    *place,
                    sum(row["difference"] > 0 for row in group),
                    len(group) - 1,
                    f"{max(row['difference'] for row in group):.2g}",
                    f"{group[0]['from_float32']:.2g}",
                    f"{max(row['from_float32'] for row in group[1:]):.2g}",
                )
                for place, group in groups.items()
            ],
            ("program", "way", "differ", "of", "most", "as it is, from float32", "most of the policies'"),
        )
    )
    for name in dict.fromkeys(row["program"] for row in found):
        alone = [row for row in found if row["program"] == name and row["way"] == "one value saved"]
        kinds: dict[str, list[float]] = {}
        for row in alone:
            shape, operator, *_ = row["policy"].split()
            kinds.setdefault(f"{shape.partition('[')[0]} {operator}", []).append(row["difference"])
        if not alone:
            continue
        print(f"\n{name}: of {len(alone)} values saved alone {sum(row['difference'] > 0 for row in alone)} change gradients")
        changing = [(kind, sum(size > 0 for size in sizes), len(sizes), f"{max(sizes):.2g}") for kind, sizes in kinds.items()]
        print(table(changing, ("value of", "change", "of", "most")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {row["program"] for row in found}
    for name, layer, is_scanned in LOSSES if not options.print else ():
        for row in rows(name, layer, is_scanned) if name not in done else ():
            found.append(row)
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    show(found)


if __name__ == "__main__":
    main()
