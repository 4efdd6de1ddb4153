"""Back end for XLA, for ``stowplan tune-xla`` and :func:`tune`: tunes compiler options that decide which values are in fast
memory.

XLA's *memory-space assignment* puts values into fast memory one by one. Compiler options (*knobs*) change the order in which it
does so, and how early it fetches values; a value for each knob is a *setting*. Other options (*flags*) change the program
before the assignment. The tuner compiles a program, learns from XLA's cycle estimates, and proposes the next options. A
*preview* is a compilation that ends right after the memory-space assignment, which takes a small part of the time. The
*default* is the compilation without any of these options, and the *incumbent* the best compilation so far. A *workload* is a
function with the shapes of its arguments, in a form that can be sent to another process.

Importing this package loads neither jax nor a solver, because programs are compiled in other processes. XLA's names for the
memories of a chip are in the ``[xla]`` table of its target. A file imports only files that come before it in this list:

- ``sharding``, ``workload``: functions and arguments in a form that can be sent to another process
- ``dumps``, ``child``: the files that a compilation writes; the process that compiles, with requests and answers as lines of
  JSON
- ``store``, ``process``, ``compiler``: results on disk; the parent's side of a child process; several child processes
- ``knobs``: options of the compiler
- ``collectives``, ``score``: cycles of collective operations; cycles of a compiled module
- ``evidence``, ``experience``: the results of all trials (compilations and previews) of a program; the results of earlier
  programs
- ``proposals``: strategies (*ways*) that propose the next options. To add one, write a ``Way`` and add it to ``WAYS``
- ``bandit``: the budget, the choice of the next compilations, and previews
- ``tuning``, ``run``, ``entry``: the result of tuning; the tuning loop; the functions that users call
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
