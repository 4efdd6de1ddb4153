"""PyTorch Lightning: a callback that makes each optimizer step of a ``Trainer`` a step of a ``TrainingMemory``.

    memory = TrainingMemory("4 GiB")
    model.network = memory.compile(model.network)
    Trainer(callbacks=[StepMemory(memory)]).fit(model, batches)

It works with the packages ``lightning`` and ``pytorch_lightning``. Importing this module loads neither of them.
"""

from __future__ import annotations

from typing import Any

from stowplan.backends.trainers import StepCallback

__all__ = ["StepMemory"]


class StepMemory(StepCallback):
    """A Lightning ``Callback``: whatever runs in a training step counts, and the memory's limit is checked in it.

    A step begins with ``on_train_batch_start`` and ends with the first ``on_train_batch_end`` after an optimizer stepped: with
    ``accumulate_grad_batches=4`` it is four batches long. An evaluation is a step of its own, and counts in the same way: the
    sanity check, each validation loop, and ``validate``, ``test`` and ``predict``. If one begins between accumulated batches,
    the training step is split there. A step ends in any case with its epoch, and when the trainer meets an exception.
    """

    __doc__ += (StepCallback.__doc__ or "").partition("\n")[2]
    base, modules, extra = "Callback", ("lightning.pytorch", "pytorch_lightning"), "lightning"

    _updates = 0
    """How many optimizer steps the trainer had taken when the scope was opened."""

    def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Open a scope, unless batches are being accumulated in one."""
        if not self.is_open:
            self._updates = trainer.global_step
        self.open()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Close the scope if an optimizer stepped in it."""
        if trainer.global_step != self._updates:
            self.close()

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """An evaluation begins: it has a scope of its own."""
        self.close()
        self.open()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the scope, if one is open: batches without an optimizer step were the last ones of an epoch."""
        self.close()

    on_test_start = on_predict_start = on_validation_start
    on_train_epoch_end = on_validation_end = on_test_end = on_predict_end = on_train_end

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Close the scope: the trainer ends."""
        self.abandon(exception)
