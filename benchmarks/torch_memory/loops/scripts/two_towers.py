"""Pictures and sentences are embedded by two compiled models, and each is told from all others of the batch.

After https://github.com/mlfoundations/open_clip/pull/65 (memory of two towers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, Language, images, pictures, text
from benchmarks.torch_memory.loops.run import Run


class Sentences(nn.Module):
    """The mean of a sentence's hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language(1)

    def forward(self, words: Any) -> Any:
        return self.language.hidden(words).mean(1)


def loop(run: Run) -> Iterator[Any]:
    towers, scale = (images(out=WIDTH), Sentences()), nn.Parameter(torch.tensor(2.0))
    see, read = (run.compile(each) for each in towers)
    optimizer = torch.optim.AdamW([*towers[0].parameters(), *towers[1].parameters(), scale], lr=1e-3)
    for _ in range(5):
        with run.step():
            seen = functional.normalize(see(pictures(48)[0]), dim=1)
            said = functional.normalize(read(text(48, 12)[0]), dim=1)
            likeness = scale.exp() * seen @ said.t()
            right = torch.arange(48)
            loss = (functional.cross_entropy(likeness, right) + functional.cross_entropy(likeness.t(), right)) / 2
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                scale.clamp_(0, 4)
        yield loss.item()
