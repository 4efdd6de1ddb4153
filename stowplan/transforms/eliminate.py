"""Eliminates load/store pairs, that is, pure data movement, from an affine program, and reports the outcome for each pair.

The method is that of section 2.1 of Zheng et al., "Optimizing Memory-Access Patterns for Deep Learning Accelerators" (2020,
arXiv 2002.12798). A *pair* is a copy: a loop nest that reads a value in each iteration (its *load*) and writes it to an element
of a tensor (its *store*), for example a transpose. The tensor that it writes is eliminated by making every reader of the tensor
read the source of the copy instead. Statements, which are copies and operators, are visited in order. The load of a copy has
therefore been rewritten before the tensor that the copy writes is eliminated, so that one pass suffices.

:mod:`stowplan.hardware.affine.program` defines programs, and :mod:`stowplan.transforms.compose` reverses stores and rewrites
loads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from stowplan.deadline import check_reading
from stowplan.hardware.affine.program import Copy, Load, Program, Statement
from stowplan.transforms import compose as views

Reason = Literal["not affine", "not invertible", "observable output", "too long"]

#: A pair is kept if the load that replaces its tensor has more terms than this, because composing it would take long. The terms
#: are the summands of all index expressions and conditions of the load. Each copy that shuffles the elements of a shuffled
#: tensor doubles their number.
MAX_TERMS = 2000


@dataclass(frozen=True)
class Pair:
    """The outcome for one load/store pair."""

    name: str
    """Name of the loop nest."""
    op: str
    """Name of the operation from which the loop nest was made, such as ``transpose``."""
    tensor: str
    """Name of the tensor that the loop nest writes."""
    bytes: int
    """How many bytes of the tensor the loop nest writes."""
    reason: Reason | None
    """Why the pair was kept; None if it was eliminated.

    - ``not affine``: another statement reads the tensor at indices that are known only at run time.
    - ``not invertible``: several iterations write one element.
    - ``observable output``: the program returns the tensor.
    - ``too long``: the load that would replace the tensor has more than :data:`MAX_TERMS` terms.
    """
    detail: str = ""
    """An explanation of the reason; empty if the pair was eliminated."""

    @property
    def eliminated(self) -> bool:
        """Whether the pair was eliminated."""
        return self.reason is None


@dataclass(frozen=True)
class Report:
    """The outcomes for all pairs, and the tensors that were eliminated."""

    pairs: tuple[Pair, ...]
    """The outcome for each pair, in the order of the program."""
    tensors: tuple[str, ...]
    """Names of the eliminated tensors."""
    tensor_bytes: int
    """Bytes of the eliminated tensors."""
    movement_bytes: int
    """Bytes of all tensors that pairs wrote before the elimination."""
    set_calls: int
    """Number of tensors for which the rules of :func:`~stowplan.transforms.compose.view_of` could not reverse every store, so
    that the integer set library isl was used."""

    @property
    def found(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    @property
    def eliminated(self) -> int:
        """Number of eliminated pairs."""
        return sum(pair.eliminated for pair in self.pairs)

    @property
    def kept(self) -> tuple[Pair, ...]:
        """Pairs that were kept, each with its reason."""
        return tuple(pair for pair in self.pairs if not pair.eliminated)

    def summary(self) -> str:
        """A summary of a few lines."""
        lines = [
            f"{self.eliminated} of {self.found} load/store pairs eliminated, "
            f"{self.tensor_bytes:,} of {self.movement_bytes:,} bytes of the tensors they wrote"
        ]
        lines += [f"  kept {pair.name} ({pair.op}): {pair.reason}, {pair.detail}" for pair in self.kept]
        return "\n".join(lines)

    def by_op(self) -> dict[str, tuple[int, int]]:
        """Returns the numbers of eliminated pairs and of all pairs by operation; the operation with the most pairs is first."""
        total, eliminated = Counter(pair.op for pair in self.pairs), Counter(pair.op for pair in self.pairs if pair.eliminated)
        return {op: (eliminated[op], count) for op, count in total.most_common()}


def eliminate(program: Program) -> tuple[Program, Report]:
    """Removes the copies that can be eliminated from a program.

    Stores are reversed by rules. The integer set library isl is used only for tensors to which the rules do not apply.

    Parameters
    ----------
    program
        A valid program (:mod:`stowplan.hardware.affine.check`).

    Returns
    -------
    tuple
        A program with the same outputs, without the eliminated tensors and the copies that write them, and the report.

    Raises
    ------
    MissingDependencyError
        The integer set library is needed, and its Python package islpy is not installed.
    TimeLimitError
        The time limit for reading the input was reached.
    """
    return _Pass(program).run()


class _Pass:
    """The state of one pass over a program."""

    def __init__(self, program: Program):
        self._program = program
        self._writers: dict[str, list[str]] = {}
        """Maps a tensor to the names of the copies that write it."""
        self._dynamic: dict[str, str] = {}
        """Maps a tensor to a reader whose indices are known only at run time."""
        for statement in program.statements:
            if isinstance(statement, Copy):
                self._writers.setdefault(statement.store.tensor, []).append(statement.name)
            for load in statement.loads:
                if load.dynamic:
                    self._dynamic.update((name, statement.name) for name in load.tensors)
        self._views: dict[str, Load] = {}
        """Maps an eliminated tensor to the load that replaces it."""
        self._rewritten: dict[str, list[Copy]] = {}
        """Maps a tensor to the writers that were visited so far, with rewritten loads."""
        self._reasons: dict[str, tuple[Reason, str]] = {}
        """Maps a tensor that is kept to the reason and its explanation."""
        self._set_calls = 0

    def run(self) -> tuple[Program, Report]:
        """Visits all statements; returns the new program and the report."""
        statements: list[Statement] = []
        for statement in self._program.statements:
            check_reading()
            if isinstance(statement, Copy):
                copy = replace(statement, load=views.compose(statement.load, self._views))
                statements.append(copy)
                parts = self._rewritten.setdefault(copy.store.tensor, [])
                parts.append(copy)
                if len(parts) == len(self._writers[copy.store.tensor]):
                    self._decide(copy.store.tensor, parts)
            else:
                statements.append(replace(statement, loads=tuple(views.compose(load, self._views) for load in statement.loads)))
        remaining = [
            statement for statement in statements if not (isinstance(statement, Copy) and statement.store.tensor in self._views)
        ]
        tensors = {name: tensor for name, tensor in self._program.tensors.items() if name not in self._views}
        return replace(self._program, statements=tuple(remaining), tensors=tensors), self._report()

    def _decide(self, name: str, writers: list[Copy]) -> None:
        """Finds the load that replaces a tensor with these writers, or records why the tensor is kept."""
        if name in self._program.outputs:
            self._reasons[name] = "observable output", f"the program returns {name}"
            return
        if name in self._dynamic:
            self._reasons[name] = "not affine", f"{self._dynamic[name]} reads it at indices known only when it runs"
            return
        shape = self._program.tensors[name].shape
        try:
            view = views.view_of(writers, shape)
            if view is None:
                self._set_calls += 1
                view = views.view_of_by_sets(writers, shape)
        except views.NotInvertibleError:
            self._reasons[name] = "not invertible", "several iterations write one element"
            return
        terms = sum(
            part.size for piece in view.pieces for part in (*piece.index, *(bound.expression for bound in piece.domain))
        )
        if terms > MAX_TERMS:
            self._reasons[name] = "too long", f"its access has {terms} terms, more than {MAX_TERMS}"
            return
        self._views[name] = view

    def _report(self) -> Report:
        """Returns the report about all pairs. A copy that only stores constants is no pair."""
        pairs = []
        written = set()
        for copy in self._program.copies():
            if not copy.load.tensors:
                continue
            tensor = self._program.tensors[copy.store.tensor]
            written.add(tensor.name)
            reason, detail = self._reasons.get(tensor.name, (None, ""))
            pairs.append(Pair(copy.name, copy.op, tensor.name, prod(copy.extents) * tensor.item_bytes, reason, detail))
        eliminated = tuple(self._views)
        tensors = self._program.tensors
        return Report(
            pairs=tuple(pairs),
            tensors=eliminated,
            tensor_bytes=sum(tensors[name].bytes for name in eliminated),
            movement_bytes=sum(tensors[name].bytes for name in written),
            set_calls=self._set_calls,
        )
