"""Small models and steps of training, and what is seen of them while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
Tensor = torch.Tensor


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Attention and a gated feed-forward layer."""

    def __init__(self, width: int, heads: int = 2, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.first, self.second = Norm(width), Norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down, self.dropout = nn.Linear(2 * width, width, bias=False), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        y = self.second(x)
        return x + self.dropout(self.down(functional.silu(self.gate(y)) * self.up(y)))


class Decoder(nn.Module):
    """Embedding, blocks, head, loss; ``around`` calls each block."""

    def __init__(self, layers: int = 3, width: int = 32, dropout: float = 0.0, is_tied: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width, dropout=dropout) for _ in range(layers))
        self.head = nn.Linear(width, 50, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight
        self.around: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = self.around(block, x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def words(batch: int = 2, length: int = 64) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 50, (batch, length))


def gradients(model: nn.Module, function: Callable[[], Tensor], seed: int = 3) -> list[Tensor]:
    """Of all parameters, after one step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    function().backward()
    found = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def assert_same(one: list[Tensor], other: list[Tensor], **tolerance: float) -> None:
    assert len(one) == len(other) > 0
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, **tolerance)


def tight(part: float = 0.3, time_limit: float = 1.0) -> Any:
    """A planner whose limit is a part of the way from the least peak to the order given's; too little time for a search."""
    import msgspec

    from stowplan.backends.torch.partition import Partitioner, prepared
    from stowplan.backends.torch.planning import Settings
    from stowplan.backends.torch.reader import read
    from stowplan.models.rematerialization.structure import build
    from stowplan.portfolio.rematerialization.peaks import least_peak

    class Tight(Partitioner):
        def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
            problem = read(prepared(gm).graph, kwargs["num_fwd_outputs"]).problem
            structure = build(msgspec.structs.replace(problem, limit=None))
            least, given = least_peak(problem)[0].peak, structure.made(structure.order).peak
            limit = least + int((given - least) * part)
            self.settings = Settings(limit=limit, time_limit=time_limit)
            return super().__call__(gm, joint_inputs, **kwargs)

    return Tight(Settings(limit=1))


class Compiled:
    """A model compiled with a planner, operator by operator; keeps what the planner made."""

    def __init__(self, model: Any, planner: Any, **options: Any):
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.backends.debugging import boxed_nop

        self.halves: list[tuple[Any, Any]] = []

        def partition(module: Any, inputs: Any, **kwargs: Any) -> Any:
            self.halves.append(planner(module, inputs, **kwargs))
            return self.halves[-1]

        torch._dynamo.reset()
        kept = aot_autograd(fw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True)
        self.function = torch.compile(model, backend=kept, **options)

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def targets(self) -> list[str]:
        """Names of all operators that run, in both passes of all graphs."""
        graphs = [half.graph for halves in self.halves for half in halves]
        return [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]
