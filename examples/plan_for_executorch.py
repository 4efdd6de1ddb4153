"""Export a small model with plans of stowplan's, run it in ExecuTorch, and compare with eager: ``make executorch``.

    python examples/plan_for_executorch.py [PTE]

Needs ``pip install '.[executorch]'``. The program is written to PTE where that is given.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap
    from executorch.runtime import Runtime
    from torch import Tensor, nn
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[executorch]'")

from stowplan.backends.executorch import memory_planning_pass


class Branches(nn.Module):
    """A few convolutions, wired so that greedy planning leaves holes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.sources = [[0], [0, 1], [1], [0, 2, 3], [3, 4], [2], [1, 5, 6], [4, 7], [3, 8], [6, 7, 9]]
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in self.sources)

    def forward(self, x: Tensor) -> Tensor:
        """Add up what each convolution reads; the last three are the result."""
        values = [self.stem(x)]
        for sources, conv in zip(self.sources, self.convs, strict=True):
            values.append(conv(torch.relu(torch.cat([values[at] for at in sources], 0).sum(0, keepdim=True))))
        return torch.cat([value.mean((2, 3)) for value in values[-3:]], 1)


def main() -> None:
    torch.manual_seed(0)
    model, x = Branches().eval(), torch.randn(1, 3, 32, 32)

    # The one line that an export script needs is the memory planning pass.
    memory_pass = memory_planning_pass(time_limit=10)
    edge = to_edge(torch.export.export(model, (x,)))
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass))
    print(*memory_pass.memory_planning_algo.algo_list[0].reports, sep="\n")
    compare(program.buffer, model, x)

    # A small fast memory beside a large slow one: what is used most goes into the fast one.
    memory = TargetMemoryMap([Bank("tcm", 64 << 10, 1), Bank("sram", 1 << 20, 2)])
    banked_pass = memory_planning_pass(10, target=memory)
    edge = to_edge(torch.export.export(model, (x,)))
    banked = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=banked_pass))
    for found in banked_pass.memory_planning_algo.algo_list[0].reports:
        print(f"traffic by executorch's planner {found.stock_traffic}, now {found.traffic}")
    compare(banked.buffer, model, x)

    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_bytes(program.buffer)


def compare(buffer: bytes, model: nn.Module, x: Tensor) -> None:
    """Run a program, and say by how much its result differs from eager's."""
    found = Runtime.get().load_program(buffer).load_method("forward").execute([x])[0]
    with torch.no_grad():
        print(f"largest difference from eager: {float((found - model(x)).abs().max()):.1e}")


if __name__ == "__main__":
    main()
