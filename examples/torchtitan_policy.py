r"""A memory policy for torchtitan 0.3: ``python examples/torchtitan_policy.py`` tags a small model with it.

Needs ``pip install '.[learned]'``. ``--compile.memory_policy`` of torchtitan 0.3.0 takes its own four names alone, but
``--module`` takes any module whose functions return configurations, and a configuration may have another policy and further
options. From the folder of this file:

    PYTHONPATH=. torchrun --nproc_per_node 1 -m torchtitan.train \
        --module torchtitan_policy --config llama3_debugmodel --compile.memory_limit "2 GiB"
    PYTHONPATH=. torchrun --nproc_per_node 1 -m torchtitan.train \
        --module torchtitan_policy --config llama3_8b --compile.memory_limit "70 GiB" --compile.planning_seconds 60

What a plan within the limit runs again is tagged for torchtitan to recompute, the rest to save. It recomputes a value once,
before it is first needed, so that its peak may differ from the plan's.
"""

from __future__ import annotations

import sys
from dataclasses import field, fields, make_dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import msgspec

try:
    import torch
    from torch import Tensor, nn
    from torch.utils.checkpoint import CheckpointPolicy
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")

from stowplan import solve
from stowplan.arguments import size
from stowplan.backends.torch.reader import read


def llama3_debugmodel() -> Any:
    """For ``--config``: the small model of torchtitan's tests."""
    return planned("llama3", "graph_trainer_llama3_debugmodel")


def llama3_8b() -> Any:
    """The same of Llama 3 8B."""
    return planned("llama3", "graph_trainer_llama3_8b")


def planned(module: str, name: str) -> Any:
    """A configuration of torchtitan's graph trainer with this policy, and with its options on the command line."""
    from torchtitan.experiments.graph_trainer.configs import GraphTrainerCompileConfig
    from torchtitan.experiments.graph_trainer.registry import register_memory_policy

    register_memory_policy("stowplan")(policy)
    own = {"memory_policy": "stowplan", "memory_limit": "40 GiB", "planning_seconds": 20.0}
    columns = [(key, type(value), field(default=value)) for key, value in own.items()]
    options = make_dataclass("Planned", columns, bases=(GraphTrainerCompileConfig,), kw_only=True, slots=True)
    registry = import_module(f"torchtitan.experiments.graph_trainer.{module}.config_registry")
    config = getattr(registry, name)()
    given = {each.name: getattr(config.compile, each.name) for each in fields(config.compile)}
    config.compile = options(**given | own)
    return config


def policy(gm: torch.fx.GraphModule, *, config: Any) -> torch.fx.GraphModule:
    """Tag the nodes of the forward pass in a graph of both passes."""
    for node in gm.graph.nodes:
        node.meta.pop("recompute", None)
    outputs: Any = gm.graph.output_node().args[0]
    reading = read(gm.graph, len(outputs))
    limit = size("a memory limit of {}", config.compile.memory_limit, 1)
    result = solve(msgspec.structs.replace(reading.problem, limit=limit), time_limit=config.compile.planning_seconds)
    if result.plan is None:
        raise RuntimeError(f"no plan is within {limit} bytes: say more in --compile.memory_limit")
    runs = [number for number in result.plan.sequence if number != reading.border]
    again = {reading.nodes[number] for number in runs if runs.count(number) > 1}
    for node in gm.graph.nodes:
        if node.op == "call_function" and not node.meta.get("autograd_backward", False):
            number = reading.owner(node)
            owner = None if number is None else reading.nodes[number]
            # A view, and a part of a tuple, goes with what it is of.
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if owner in again else CheckpointPolicy.MUST_SAVE
    gm.recompile()
    print(f"peak {result.plan.peak / 1e6:.2f} MB; {len(again)} of {len(reading.nodes)} operators run again")
    return gm


def main() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))]
    model, x = nn.Sequential(*layers), torch.randn(512, 64)
    weights = dict(model.named_parameters())

    def step(values: list[Tensor], given: Tensor) -> list[Tensor]:
        loss = torch.func.functional_call(model, dict(zip(weights, values, strict=True)), (given,)).square().mean()
        return [loss, *torch.autograd.grad(loss, values)]

    gm = make_fx(step, tracing_mode="fake")([*weights.values()], x)
    for memory in ("14 MB", "7 MB"):
        policy(gm, config=SimpleNamespace(compile=SimpleNamespace(memory_limit=memory, planning_seconds=20.0)))


if __name__ == "__main__":
    main()
