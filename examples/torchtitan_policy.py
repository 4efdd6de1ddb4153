"""A memory policy for torchtitan 0.3: ``python examples/torchtitan_policy.py`` tags a small model with it.

Needs ``pip install '.[learned]'``. Where torchtitan trains, import this file and call ``plan(memory="40 GiB")``: the policy is
then ``stowplan``, in ``compile.memory_policy``: set it in code, since the command line of 0.3.0 takes its own names alone. What
a plan within the limit runs again is tagged for torchtitan to recompute, the rest to save. It recomputes a value once, before
it is first needed, so that its peak may differ from the plan's.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

try:
    import torch
    from torch import Tensor, nn
    from torch.utils.checkpoint import CheckpointPolicy
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")

from stowplan import solve
from stowplan.backends.torch.reader import read

#: What ``plan`` sets.
OPTIONS: dict[str, Any] = {"memory": None, "time_limit": 20.0}


def plan(memory: int | str, time_limit: float = 20.0) -> None:
    """Set the limit, and register the policy where torchtitan is installed."""
    from stowplan.arguments import size

    OPTIONS.update(memory=size("a memory limit of {}", memory, 1), time_limit=time_limit)
    try:
        from torchtitan.experiments.graph_trainer.registry import register_memory_policy
    except ImportError:
        print("torchtitan is not installed: the policy is not registered (pip install torchtitan==0.3.0)")
        return
    register_memory_policy("stowplan")(policy)


def policy(gm: torch.fx.GraphModule, *, config: Any) -> torch.fx.GraphModule:
    """Tag the nodes of the forward pass in a graph of both passes."""
    for node in gm.graph.nodes:
        node.meta.pop("recompute", None)
    outputs: Any = gm.graph.output_node().args[0]
    reading = read(gm.graph, len(outputs))
    problem = msgspec.structs.replace(reading.problem, limit=OPTIONS["memory"])
    result = solve(problem, time_limit=OPTIONS["time_limit"])
    if result.plan is None:
        raise RuntimeError(f"no plan is within {OPTIONS['memory']} bytes: say more, plan(memory=...)")
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
        plan(memory)
        policy(gm, config=None)


if __name__ == "__main__":
    main()
