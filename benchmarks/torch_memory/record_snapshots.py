"""Records memory snapshots of CUDA's allocator, and what ``memory_stats`` says beside: needs a GPU.

    python -m benchmarks.torch_memory.record_snapshots FOLDER [SORT...]

A process each. Of the sort ``SORT`` there are ``SORT.pickle.gz`` and ``SORT.json`` then. Those in ``tests/data/snapshots`` and
``examples/data/changing_batches.pickle.gz`` were recorded like this on an H200 with torch 2.11; names of files in their stacks
are shortened.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

KINDS = ("reserved_bytes", "active_bytes", "allocated_bytes", "requested_bytes")

#: Lengths of batches that fragment.
LENGTHS = (3, 8, 5, 11, 2, 9, 13, 4, 7, 12, 6, 10)


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        mixed = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def decoder(layers: int, width: int, heads: int) -> nn.Module:
    return nn.Sequential(*[Block(width, heads) for _ in range(layers)]).cuda()


def train(model: nn.Module, steps: int, shape: tuple[int, ...], lengths: tuple[int, ...] = ()) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for step in range(steps):
        batch = lengths[step % len(lengths)] if lengths else shape[0]
        loss = model(torch.randn(batch, *shape[1:], device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def record(**options: Any) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(**{"max_entries": 1_000_000, "stacks": "python"} | options)


def kept_bytes(sizes: Iterable[int]) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]


def mlp() -> None:
    record()
    widths = (1024, 4096, 1024, 10)
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    train(nn.Sequential(*layers[:-1]).cuda(), 2, (256, 1024))


def gpt_expandable() -> None:
    record()
    train(decoder(4, 512, 8), 3, (8, 512, 512))


def changing_batches() -> None:
    record()
    train(decoder(4, 512, 8), 12, (8, 512, 512), LENGTHS)


def fragmented() -> None:
    record()
    kept = kept_bytes((3 << 20) + (at % 7) * (1 << 19) for at in range(60))
    del kept[::2]
    kept += kept_bytes([24 << 20] * 4)
    torch.cuda.empty_cache()
    kept += kept_bytes((5 << 20) + 12345 * at for at in range(20))
    dump()


def streams() -> None:
    record()
    side, kept = torch.cuda.Stream(), []
    for at in range(12):
        (one,) = kept_bytes([(4 << 20) + at * 4096])
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            (two,) = kept_bytes([8 << 20])
            torch.cuda._sleep(20_000_000)
            two.copy_(one.repeat(3)[: 8 << 20])
        one.record_stream(side)
        kept.append(two[: 1 << 20].clone())
        del one, two
    # Frees are asked for that are not complete.
    dump()


def graphs() -> None:
    record()
    x, weight, side = torch.randn(64, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x @ weight).relu().sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ weight).relu() @ weight
        y.sum()
    graph.replay()
    train(nn.Linear(1024, 1024).cuda(), 1, (64, 1024))
    dump()


def oom() -> None:
    torch.cuda.set_per_process_memory_fraction(0.02)
    record()
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        train(decoder(8, 1024, 16), 1, (64, 1024, 1024))


def wrapped() -> None:
    record(max_entries=500)
    train(decoder(4, 512, 8), 3, (8, 512, 512))


def state() -> None:
    record(enabled="state")
    train(decoder(2, 512, 8), 1, (8, 512, 512))


SORTS = {
    sort.__name__: sort for sort in (mlp, gpt_expandable, changing_batches, fragmented, streams, graphs, oom, wrapped, state)
}

#: Where this process writes to.
OUTPUT = Path(os.environ.get("SNAPSHOT_OUTPUT", "snapshot"))


def dump() -> None:
    """Write the snapshot, and torch's own statistics; only once."""
    path = OUTPUT.with_name(f"{OUTPUT.name}.pickle")
    if path.with_suffix(".pickle.gz").exists():
        return
    torch.cuda.memory._dump_snapshot(str(path))
    path.with_suffix(".pickle.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    counted = torch.cuda.memory_stats()
    truth = {kind: {when: counted[f"{kind}.all.{when}"] for when in ("peak", "current")} for kind in KINDS}
    OUTPUT.with_name(f"{OUTPUT.name}.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sorts", nargs="*", metavar="SORT", help=", ".join(SORTS))
    given = parser.parse_args()
    if "SNAPSHOT_OUTPUT" in os.environ:
        SORTS[given.sorts[0]]()
        dump()
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for sort in given.sorts or SORTS:
        expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if sort == "gpt_expandable" else {}
        environment = os.environ | expandable | {"SNAPSHOT_OUTPUT": str(given.folder / sort)}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.torch_memory.record_snapshots", given.folder, sort], env=environment, check=True
        )


if __name__ == "__main__":
    main()
