"""The base class of callbacks for training frameworks: one event opens a step of a ``TrainingMemory``, and another closes it.

A ``TrainingMemory`` is the memory limit of a training loop; it is checked in each *step*, usually one iteration of the loop. A
callback must also be an instance of the callback class of the framework (the *trainer*). That class is imported when the first
callback is constructed, so that importing these modules does not load any framework.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stowplan.backends.fallback import MemoryLimitError, require
from stowplan.errors import UsageError

if TYPE_CHECKING:
    from stowplan.backends.torch.entry import TrainingMemory


class StepCallback:
    """Opens and closes the steps of a ``TrainingMemory``; a subclass defines at which events of the trainer.

    Parameters
    ----------
    memory
        The ``TrainingMemory`` with which the model is compiled.

    Raises
    ------
    MissingDependencyError
        The constructor raises it if the trainer's package is not installed.
    UsageError
        The constructor raises it if ``memory`` is no ``TrainingMemory``, or if it compiles with Inductor, whose steps are not
        checked.
    """

    base: ClassVar[str]
    """Name of the trainer's callback class."""
    modules: ClassVar[tuple[str, ...]]
    """Modules that may define that class. The first one that is already imported is used, otherwise the first one that is
    installed."""
    extra: ClassVar[str]
    """The extra of stowplan that installs the first of the modules."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an instance of a class that derives from this class and from the trainer's callback class."""
        callback: type = cls
        return super().__new__(_derived(callback, _class_of(cls)))

    def __init__(self, memory: TrainingMemory):
        if not callable(getattr(memory, "step", None)):
            raise UsageError(f"found a memory of {type(memory).__name__}, expected a TrainingMemory")
        memory.step()  # The context is not entered: the call raises UsageError if the memory does not check steps.
        self.memory = memory
        self._scope = ExitStack()
        self.is_open = False
        """Whether a step is open."""

    def open(self) -> None:
        """Open a step, unless one is open already."""
        if not self.is_open:
            self._scope.enter_context(self.memory.step())
            self.is_open = True

    def close(self) -> None:
        """Close the step, if one is open.

        Raises
        ------
        MemoryLimitError
            The step was above the limit, and the ``TrainingMemory`` was created with ``strict=True``, which is the default.
        """
        self.is_open = False
        self._scope.close()

    def abandon(self, error: BaseException) -> None:
        """Close the step, if one is open, because of an error.

        If the ``TrainingMemory`` can explain the error, for example because the device is out of memory, the explanation is
        added to the error as a note.
        """
        self.is_open = False
        try:
            self._scope.__exit__(type(error), error, error.__traceback__)
        except MemoryLimitError as explanation:
            error.add_note(str(explanation))


def _class_of(callback: type[StepCallback]) -> type:
    """Imports the trainer's callback class."""
    packages = {name: name.partition(".")[0] for name in callback.modules}
    names = [name for name in packages if name in sys.modules]
    names = names or [name for name, package in packages.items() if importlib.util.find_spec(package) is not None]
    if not names:
        require(f"{callback.__module__}.{callback.__name__}", (packages[callback.modules[0]],), callback.extra)
    trainer_class: type = getattr(importlib.import_module(names[0]), callback.base)
    return trainer_class


@cache
def _derived(callback: type, base: type) -> type:
    """A class that derives from both classes. This is ``callback`` itself if it derives from ``base`` already."""
    if issubclass(callback, base):
        return callback
    return type(callback.__name__, (callback, base), {"__module__": callback.__module__, "__doc__": callback.__doc__})
