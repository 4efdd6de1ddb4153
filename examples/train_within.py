"""Train a small decoder within several memory limits, and measure each: ``python examples/train_within.py [LAYERS]``.

Needs ``pip install '.[learned]'``. Peaks are bytes of tensors that are live at once, measured while a step runs.
"""

from __future__ import annotations

import sys

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")

from stowplan.backends.torch import MemoryLimitError, backend, measure_peak


class Decoder(nn.Module):
    """Embedding, layers of attention and feed-forward, loss on the next word."""

    def __init__(self, layers: int, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, words: Tensor) -> Tensor:
        """The loss."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def main() -> None:
    torch.manual_seed(0)
    model = Decoder(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
    words = torch.randint(0, 100, (8, 128))
    eager = measure_peak(lambda: model(words).backward(), model, words)
    print(f"eager: {eager / 1e6:.1f} MB")
    for share in (0.8, 0.6, 0.45, 0.2):
        limit = int(share * eager)
        model.zero_grad(set_to_none=True)
        torch._dynamo.reset()
        planned = backend(limit, outside=0, time_limit=5)  # the loss is in the model
        compiled = torch.compile(model, backend=planned)
        try:
            compiled(words).backward()
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, MemoryLimitError):
                raise
            print(f"limit {limit / 1e6:.1f} MB: {error.inner_exception}")
            continue
        model.zero_grad(set_to_none=True)
        peak = measure_peak(lambda: compiled(words).backward(), model, words)  # noqa: B023
        added = planned.reports[0].added_flops / 1e9  # type: ignore[attr-defined]
        print(f"limit {limit / 1e6:.1f} MB: {peak / 1e6:.1f} MB while a step runs, {added:.2f} GFLOP run again")


if __name__ == "__main__":
    main()
