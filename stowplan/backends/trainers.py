"""What the callbacks for trainers share: a scope of a ``TrainingMemory`` that one event opens and another one closes.

A callback is an instance of the trainer's own callback class as well. That class is imported when the first callback is made,
so that importing these modules loads no trainer.
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
    """Opens and closes the scopes of a memory; a subclass says at which events.

    Parameters
    ----------
    memory
        The ``TrainingMemory`` with which the model is compiled.

    Raises
    ------
    MissingDependencyError
        When it is made: the trainer's package is not installed.
    UsageError
        When it is made: ``memory`` is no ``TrainingMemory``, or it compiles with Inductor, whose steps are not counted.
    """

    base: ClassVar[str]
    """Name of the trainer's callback class."""
    modules: ClassVar[tuple[str, ...]]
    """Modules that may have that class: the first one that is loaded is taken, else the first one that is installed."""
    extra: ClassVar[str]
    """The extra of this package that installs the first of the modules."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an instance of this class that is one of the trainer's callback class, too."""
        own: type = cls
        return super().__new__(_derived(own, _class_of(cls)))

    def __init__(self, memory: TrainingMemory):
        if not callable(getattr(memory, "step", None)):
            raise UsageError(f"found a memory of {type(memory).__name__}, expected a TrainingMemory")
        memory.step()  # is not entered: this refuses a memory that has no steps
        self.memory = memory
        self._scope = ExitStack()
        self.is_open = False
        """Whether a scope is open."""

    def open(self) -> None:
        """Open a scope; if one is open already, it goes on."""
        if not self.is_open:
            self._scope.enter_context(self.memory.step())
            self.is_open = True

    def close(self) -> None:
        """Close the scope, if one is open.

        Raises
        ------
        MemoryLimitError
            The step that ends was above the limit, if that is an error.
        """
        self.is_open = False
        self._scope.close()

    def abandon(self, error: BaseException) -> None:
        """Close the scope, if one is open, because of an error; what the memory knows about it is added to it as a note."""
        self.is_open = False
        try:
            self._scope.__exit__(type(error), error, error.__traceback__)
        except MemoryLimitError as named:
            error.add_note(str(named))


def _class_of(callback: type[StepCallback]) -> type:
    """The callback class of the trainer."""
    packages = {name: name.partition(".")[0] for name in callback.modules}
    names = [name for name in packages if name in sys.modules]
    names = names or [name for name, package in packages.items() if importlib.util.find_spec(package) is not None]
    if not names:
        require(f"{callback.__module__}.{callback.__name__}", (packages[callback.modules[0]],), callback.extra)
    found: type = getattr(importlib.import_module(names[0]), callback.base)
    return found


@cache
def _derived(callback: type, base: type) -> type:
    if issubclass(callback, base):
        return callback
    return type(callback.__name__, (callback, base), {"__module__": callback.__module__, "__doc__": callback.__doc__})
