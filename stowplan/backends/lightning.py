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
    """A Lightning ``Callback`` that checks the memory limit in each training step; all tensors that the step allocates count.

    A step begins with ``on_train_batch_start`` and ends with the first ``on_train_batch_end`` after an optimizer stepped: with
    ``accumulate_grad_batches=4`` it is four batches long. Each evaluation is a step of its own, for which the limit holds as
    well: the sanity check, each validation loop, and ``validate``, ``test`` and ``predict``. If an evaluation begins between
    accumulated batches, it splits the training step. A step also ends at the end of its epoch, and when the trainer meets an
    exception.
    """

    __doc__ += (StepCallback.__doc__ or "").partition("\n")[2]
    base, modules, extra = "Callback", ("lightning.pytorch", "pytorch_lightning"), "lightning"

    _updates = 0
    """How many optimizer steps the trainer had done when the step was opened."""

    def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Open a step, unless one is open in which the gradients of several batches are accumulated."""
        if not self.is_open:
            self._updates = trainer.global_step
        self.open()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Close the step if an optimizer stepped in it."""
        if trainer.global_step != self._updates:
            self.close()

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """Open a step for an evaluation that begins."""
        self.close()
        self.open()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the step, if one is open: the last batches of an epoch may come without an optimizer step."""
        self.close()

    on_test_start = on_predict_start = on_validation_start
    on_train_epoch_end = on_validation_end = on_test_end = on_predict_end = on_train_end

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Close the step, because the trainer ends with an exception."""
        self.abandon(exception)
