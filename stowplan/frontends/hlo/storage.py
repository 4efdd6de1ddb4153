"""Which values share storage: sets of values that are never alive at the same time.

A value is alive from its definition to its last read, in doubled logical time: step ``t`` happens at ``2 t``, the moment after
it is ``2 t + 1``. Program inputs are defined at ``-1``. A value may take the place of another in the step that reads the other
last.
"""

from __future__ import annotations

from bisect import bisect_left

#: Moment at which program inputs are defined.
START = -1


class Values:
    """Values of a program in the order of their definition, and the storage they share (a union of disjoint sets)."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.defined: list[int] = []
        self.last_read: list[int] = []
        self.frozen: list[bool] = []
        """Inputs that nobody may overwrite: constants, and parameters that the caller keeps."""
        self._parent: list[int] = []
        self._lives: list[list[tuple[int, int]]] | None = None
        self._frozen_sets: set[int] = set()

    def add(self, name: str, size: int, defined: int, *, frozen: bool = False) -> int:
        """A new value in storage of its own; ``size`` in bytes."""
        self.names.append(name)
        self.sizes.append(size)
        self.defined.append(defined)
        self.last_read.append(defined)
        self.frozen.append(frozen)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def read(self, value: int, moment: int) -> None:
        """The value is alive at ``moment``. All reads come before the first :meth:`share`."""
        self.last_read[value] = max(self.last_read[value], moment)

    def storage(self, value: int) -> int:
        """A value that stands for the whole set."""
        root = value
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[value] != root:
            self._parent[value], value = root, self._parent[value]
        return root

    def share(self, first: int, second: int, *, forced: bool = False) -> bool:
        """Put two values in one storage; whether all that stands there then is alive one after the other.

        Where it is not, or a frozen input would be overwritten, nothing changes unless ``forced``.
        """
        first, second = self.storage(first), self.storage(second)
        if first == second:
            return True
        if self._lives is None:
            self._lives = [[(start, end)] for start, end in zip(self.defined, self.last_read, strict=True)]
            self._frozen_sets = {value for value, frozen in enumerate(self.frozen) if frozen}
        if len(self._lives[first]) < len(self._lives[second]):
            first, second = second, first
        lives = self._lives[first]
        fits = first not in self._frozen_sets and second not in self._frozen_sets and self.sizes[first] == self.sizes[second]
        fits = fits and all(_is_free(lives, life) for life in self._lives[second])
        if not (fits or forced):
            return False
        for life in self._lives[second]:
            lives.insert(bisect_left(lives, life), life)
        self._lives[second] = []
        self._parent[second] = first
        self.sizes[first] = max(self.sizes[first], self.sizes[second])
        if second in self._frozen_sets:
            self._frozen_sets.add(first)
        return fits


def _is_free(lives: list[tuple[int, int]], life: tuple[int, int]) -> bool:
    """Whether ``life`` overlaps none of the sorted ``lives``; touching ends are no overlap, starting together is."""
    place = bisect_left(lives, life)
    if place < len(lives) and (lives[place][0] == life[0] or lives[place][0] < life[1]):
        return False
    return place == 0 or (lives[place - 1][0] != life[0] and lives[place - 1][1] <= life[0])
