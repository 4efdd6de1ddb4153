"""A student sees crops of two sizes and a teacher the large ones, in one step; the teacher's centre is a running mean.

After https://github.com/facebookresearch/dino/issues/154 (crops of two sizes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.torch_memory.loops.parts import CLASSES, images, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    networks = images(), images().requires_grad_(False)
    networks[1].load_state_dict(networks[0].state_dict())
    student, teacher = (run.compile(each) for each in networks)
    optimizer = torch.optim.AdamW(networks[0].parameters(), lr=1e-3)
    centre = torch.zeros(1, CLASSES)
    for _ in range(5):
        with run.step():
            x = pictures(16)[0]
            crops = [x, x.flip(3), x[:, :, 2:10, 2:10], x[:, :, 4:12, :8], x[:, :, :8, 4:12]]
            with torch.no_grad():
                aims = [((teacher(crop) - centre) / 0.1).softmax(1) for crop in crops[:2]]
            found = [student(crop).log_softmax(1) for crop in crops]
            pairs = [(aim, each) for at, aim in enumerate(aims) for to, each in enumerate(found) if at != to]
            loss = -sum((aim * each).sum(1).mean() for aim, each in pairs) / len(pairs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                centre = 0.9 * centre + 0.1 * torch.cat(aims).mean(0, keepdim=True)
                torch._foreach_lerp_([*networks[1].parameters()], [*networks[0].parameters()], 0.05)
        yield loss.item()
