"""Transformers: a callback that makes each optimizer step of a ``Trainer`` a step of a ``TrainingMemory``.

    memory = TrainingMemory("4 GiB")
    model.compile(backend=memory)
    Trainer(model, arguments, train_dataset=data, callbacks=[StepMemory(memory)]).train()

Importing this module does not load the package ``transformers``.
"""

from __future__ import annotations

from typing import Any

from stowplan.backends.trainers import StepCallback

__all__ = ["StepMemory"]


class StepMemory(StepCallback):
    """A ``TrainerCallback`` that checks the memory limit in each training step; all tensors that the step allocates count.

    A step begins with ``on_step_begin`` and ends with ``on_step_end``, or with its epoch. With
    ``gradient_accumulation_steps=4`` it is four batches long, because ``on_substep_end`` does not end it. The trainer has no
    event for the beginning of an evaluation. The step of an evaluation therefore opens when the compiled model is first called
    in it, and ends when the next training step begins. The limit holds for it as well.

    The trainer has no event for exceptions, either. If an exception ends ``train()``, the step stays open until ``train()`` is
    called again; call ``close()`` before you use the memory without a trainer.
    """

    __doc__ += (StepCallback.__doc__ or "").partition("\n")[2]
    base, modules, extra = "TrainerCallback", ("transformers",), "transformers"

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Close the step that an exception in an earlier call of ``train()`` left open, without checking the limit."""
        self.abandon(RuntimeError("the trainer begins anew"))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Open a step."""
        self.open()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Close the step, if one is open."""
        self.close()

    on_epoch_end = on_train_end = on_step_end
