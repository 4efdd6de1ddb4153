"""Train a small model with PyTorch Lightning within 70 % of its memory: ``python examples/train_with_lightning.py``.

Needs ``pip install '.[lightning]'``. The model has dropout and is trained with AdamW, validated after each epoch.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

try:
    import lightning.pytorch as pl
    import torch
    from torch import Tensor, nn
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[lightning]'")

from torch.utils.data import DataLoader

from stowplan.backends.lightning import StepMemory
from stowplan.backends.torch import TrainingMemory, measure_peak


class Words(pl.LightningModule):
    """A transformer that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 128, dropout=0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.network = nn.Sequential(nn.Embedding(50, 32), encoder, nn.Linear(32, 50))
        self.losses: list[float] = []

    def loss(self, words: Tensor) -> Tensor:
        """Mean cross entropy of the next word."""
        return nn.functional.cross_entropy(self.network(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    def training_step(self, words: Tensor) -> Tensor:
        """The loss of a batch."""
        loss = self.loss(words)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, words: Tensor) -> None:
        """The loss of a batch that is not trained on."""
        self.log("validation", self.loss(words))

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(memory: TrainingMemory | None = None) -> list[float]:
    """Train for two epochs, within a memory if there is one; the losses."""
    pl.seed_everything(0, verbose=False)
    model = Words()
    words = torch.randint(0, 50, (96, 33))
    callbacks: list[Any] = []
    if memory is not None:
        model.network = memory.compile(model.network)
        callbacks.append(StepMemory(memory))
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(words[16:], batch_size=8, shuffle=True), DataLoader(words[:16], batch_size=8))
    return model.losses


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    losses: list[list[float]] = []
    eager = measure_peak(lambda: losses.append(fit()))
    print(f"eager: {eager:,} bytes")
    memory = TrainingMemory(int(0.7 * eager), time_limit=5)
    losses.append(fit(memory))
    print(f"losses: {losses[1][0]:.3f} to {losses[1][-1]:.3f}, {'equal' if losses[0] == losses[1] else 'not equal'} to eager's")
    print(memory.report)


if __name__ == "__main__":
    main()
