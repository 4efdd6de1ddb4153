"""The asynchronous fabric of a simulated machine: messages on their way, words in tile memories, and flows that wait for them.

Like the tiles it knows tables only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from stowplan.errors import VerificationError
from stowplan.hardware.se.configuration import Configuration, Entry, Flow, Words
from stowplan.hardware.se.reference import Lanes

#: A word in a tile's memory: (tile, address of the first of its value, which of them).
_Word = tuple[int, int, int]


class Fabric:
    """Messages in flight, and the words that wait for them or hold them.

    Parameters
    ----------
    iterations
        What no later iteration reads is not sent.
    clocks_of
        Clocks that a message takes, given its nominal ones; those where None.
    """

    def __init__(self, configuration: Configuration, iterations: int, clocks_of: Callable[[int], int] | None):
        self._iterations = iterations
        fabric = configuration.machine.asynchronous
        self._latency, self._memory_latency = (0, 0) if fabric is None else (fabric.latency, fabric.memory_latency)
        self._interfaces = {each.name: each for each in configuration.machine.interfaces}
        self._clocks_of = clocks_of or (lambda nominal: nominal)
        self._reads = {(tile.tile, each.address): each.reads for tile in configuration.tiles for each in tile.received}
        self._words = {(tile.tile, each.address): each.words for tile in configuration.tiles for each in tile.received}
        self._coming: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._asked: Counter[tuple[int, str]] = Counter()
        self._holder: dict[_Word, int] = {}
        """Iteration that each word in use is for."""
        self._value: dict[tuple[int, int, int], Lanes] = {}
        """Values that are there, by tile, address and iteration."""
        self._left: dict[tuple[int, int, int], int] = {}
        self.answers: dict[str, dict[int, Lanes]] = {
            entry.id: {} for tile in configuration.tiles for entry in tile.instructions if entry.interface is not None
        }

    @property
    def is_busy(self) -> bool:
        """Whether messages are on their way."""
        return bool(self._coming)

    def send(self, clock: int, words: Words, value: Lanes, turn: int) -> None:
        """A result goes to the memory of another tile."""
        if not self._readers(words, turn):
            return
        arrives = clock + self._clocks_of(self._latency)
        self._coming[arrives].append(lambda: self._write(arrives, words, value, turn))

    def ask(self, clock: int, tile: int, entry: Entry, value: Lanes, turn: int) -> None:
        """A request goes to memory, which answers with ``value``."""
        interface = self._interfaces.get(entry.interface or "")
        if interface is None or (interface.tiles is not None and tile not in interface.tiles):
            raise VerificationError(f"clock {clock}: {entry.id} asks {entry.interface}, which does not serve tile {tile}")
        self._asked[clock, interface.name] += 1
        if self._asked[clock, interface.name] > interface.ports:
            raise VerificationError(f"clock {clock}: {entry.id} finds no free port of {interface.name}")
        arrives = clock + self._clocks_of(self._memory_latency)

        def answer() -> None:
            self.answers[entry.id][turn] = value
            if entry.sends is not None and self._readers(entry.sends, turn):
                self._write(arrives, entry.sends, value, turn)

        self._coming[arrives].append(answer)

    def deliver(self, clock: int) -> bool:
        """Messages that arrive in this clock; whether there were any."""
        arrived = self._coming.pop(clock, [])
        for message in arrived:
            message()
        return bool(arrived)

    def _write(self, clock: int, words: Words, value: Lanes, turn: int) -> None:
        word = words.tile, words.address, turn % words.words
        if self._holder.get(word) != turn or (words.tile, words.address, turn) in self._value:
            raise VerificationError(f"clock {clock}: no word of tile {words.tile} is kept for what arrives at {words.address}")
        self._value[words.tile, words.address, turn] = value

    def _readers(self, words: Words, turn: int) -> int:
        """Operands that will read the value of a thread."""
        return sum(turn + skip < self._iterations for skip in self._reads[words.tile, words.address])

    def reserve(self, words: Words, turn: int) -> None:
        """Keep a word for what a thread will send."""
        readers = self._readers(words, turn)
        if readers:
            self._holder[words.tile, words.address, turn % words.words] = turn
            self._left[words.tile, words.address, turn] = readers

    def is_free(self, words: Words, turn: int) -> bool:
        """Whether the word that a thread will fill is free."""
        return not self._readers(words, turn) or (words.tile, words.address, turn % words.words) not in self._holder

    def is_there(self, words: Words, turn: int) -> bool:
        """Whether the value that a thread needs has arrived."""
        return turn < words.skip or (words.tile, words.address, turn - words.skip) in self._value

    def read(self, clock: int, tile: int, address: int, turn: int, who: str) -> Lanes:
        """A value in tile memory; its word is free after the last read."""
        key = tile, address, turn
        if key not in self._value:
            raise VerificationError(f"clock {clock}: {who} on tile {tile} finds nothing at address {address}")
        self._left[key] -= 1
        if self._left[key]:
            return self._value[key]
        del self._holder[tile, address, turn % self._words[tile, address]]
        return self._value.pop(key)


class Launches:
    """Threads of a flow: each at the launch of its table plus a multiple of the interval, when its words are there and free."""

    def __init__(self, flow: Flow, ii: int, iterations: int, fabric: Fabric):
        self._flow, self._ii, self._iterations, self._fabric = flow, ii, iterations, fabric
        self._threads = 0
        self._clocks: set[int] = set()

    def launch(self, clock: int) -> bool:
        """Launch the next thread where it can be; whether it was."""
        flow, turn = self._flow, self._threads
        if turn == self._iterations or clock < flow.launch or (clock - flow.launch) % self._ii:
            return False
        if not all(self._fabric.is_there(words, turn) for words in flow.needs):
            return False
        if not all(self._fabric.is_free(words, turn) for words in flow.fills):
            return False
        for words in flow.fills:
            self._fabric.reserve(words, turn)
        self._threads += 1
        self._clocks.add(clock)
        return True

    def is_due(self, clocks: int) -> bool:
        """Whether a thread was launched this long after the first launch of the table; clocks may be negative."""
        return clocks + self._flow.launch in self._clocks
