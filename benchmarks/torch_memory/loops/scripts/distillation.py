"""A large teacher runs without gradients, and the student learns its softened answers; both are compiled.

After https://github.com/meta-pytorch/torchtune/issues/2213 (memory of a teacher and a student).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    large, small = mlp(6, dropout=0.1).eval().requires_grad_(False), mlp(4, dropout=0.1)
    teacher, student = run.compile(large), run.compile(small)
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(320)
            with torch.inference_mode():
                soft = (teacher(x) / 2).softmax(1)
            logits = student(x)
            near = functional.kl_div((logits / 2).log_softmax(1), soft.clone(), reduction="batchmean")
            loss = 4 * near + functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
