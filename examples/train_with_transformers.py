"""Train a small GPT-2 with Transformers' Trainer within 70 % of its memory: ``python examples/train_with_transformers.py``.

Needs ``pip install '.[transformers]'``. The weights are random, nothing is downloaded. GPT-2 has dropout, and the Trainer's
optimizer is AdamW; gradients of two batches are accumulated for each of its steps.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
    from transformers.utils import logging
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[transformers]'")

from stowplan.backends.torch import TrainingMemory, measure_peak
from stowplan.backends.transformers import StepMemory


def train(memory: TrainingMemory | None = None) -> list[float]:
    """Train for one epoch, within a memory if there is one; the losses."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    model = GPT2LMHeadModel(config)
    words = torch.randint(0, 50, (96, 32))
    callbacks: list[Any] = []
    if memory is not None:
        model.compile(backend=memory)
        callbacks.append(StepMemory(memory))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in words], callbacks=callbacks
        )
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    logging.set_verbosity_error()
    expected: list[float] = []
    eager = measure_peak(lambda: expected.extend(train()))
    limit = TrainingMemory(int(0.7 * eager), time_limit=5)
    found = train(limit)
    print(f"losses: {found[0]} to {found[-1]}{', equal to' if found == expected else ', other than'} eager's")
    print(f"eager: {eager:,} bytes", limit.report, sep="\n")


if __name__ == "__main__":
    main()
