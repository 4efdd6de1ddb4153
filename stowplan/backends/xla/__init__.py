"""XLA: plans become compiler options, and what the compiler made of them comes back.

Importing it loads neither jax nor a solver: what compiles does so in a process of its own. What XLA calls things on a chip is
the ``[xla]`` table of its target. Each file knows only those above it in this list:

- ``sharding``, ``workload``: what is sent to another process and rebuilt there
- ``dumps``, ``child``: the files of a compile; the process that compiles. Requests and answers are lines of JSON
- ``store``, ``process``, ``compiler``: results on disk; the parent's side of a child; children side by side
- ``knobs``: options of the compiler
- ``collectives``, ``score``: what a result costs
- ``evidence``, ``experience``: what all trials of a program have shown, and what earlier programs have
- ``proposals``: ways of finding the next setting. To add one, write a ``Way`` and give it a line in ``WAYS``
- ``bandit``: what is left, and what to try next; previews
- ``tuning``, ``run``, ``entry``: what came of a run; the run; what users call
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from stowplan.lazy import lazy_names, public_names

if TYPE_CHECKING:
    from stowplan.backends.xla.compiler import Compiler as Compiler
    from stowplan.backends.xla.entry import tune as tune
    from stowplan.backends.xla.entry import tune_workload as tune_workload
    from stowplan.backends.xla.knobs import Knobs as Knobs
    from stowplan.backends.xla.knobs import as_flags as as_flags
    from stowplan.backends.xla.process import CompileError as CompileError
    from stowplan.backends.xla.tuning import Tuning as Tuning
    from stowplan.backends.xla.workload import Workload as Workload
    from stowplan.backends.xla.workload import by_name as by_name
    from stowplan.backends.xla.workload import of_function as of_function

_PLACES = {
    "compiler": ["Compiler"],
    "process": ["CompileError"],
    "entry": ["tune", "tune_workload"],
    "knobs": ["Knobs", "as_flags"],
    "tuning": ["Tuning"],
    "workload": ["Workload", "by_name", "of_function"],
}

__all__ = [*chain.from_iterable(_PLACES.values())]

__getattr__ = lazy_names(__name__, _PLACES)
__dir__ = public_names(globals())
