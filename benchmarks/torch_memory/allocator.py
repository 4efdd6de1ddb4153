"""A plain model of torch's caching allocator, which writes memory snapshots: traces of any length and sort, without a GPU.

Written from what torch documents of its allocator (``torch.cuda.memory``, the notes on CUDA semantics) and from snapshots that
were recorded; it shares no code with :mod:`stowplan.frontends.snapshot`, whose tests compare the two.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


class OutOfMemoryError(Exception):
    """More was asked for than there is."""


@dataclass
class Block:
    """Bytes of a segment that are in use as one, or free."""

    address: int
    size: int
    segment: int
    """Address of the segment that it is part of."""
    state: str = "inactive"
    requested: int = 0
    frames: Any = ()


class Allocator:
    """Allocates, frees and records.

    Parameters
    ----------
    limit
        Bytes of the device.
    expandable
        Segments grow, as ``expandable_segments:True`` has it.
    max_split
        Bytes from which on blocks are not split; None for no such limit.
    parts
        ``roundup_power2_divisions``; 0 rounds to 512 bytes.
    """

    def __init__(self, limit: int = 1 << 40, *, expandable: bool = False, max_split: int | None = None, parts: int = 0):
        self.limit, self.expandable, self.max_split, self.parts = limit, expandable, max_split, parts
        self.blocks: dict[int, Block] = {}
        self.addresses: list[int] = []
        self.free_blocks: defaultdict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
        self.pools: dict[int, tuple[int, bool]] = {}
        """Stream, and whether it is for small blocks, of each segment."""
        self.extents: dict[int, int] = {}
        """Address after each segment's last mapped byte."""
        self.reserved = self.active = self.allocated = self.requested = 0
        self.events: list[dict[str, Any]] = []
        self.amounts: list[tuple[int, int, int, int]] = []
        """Reserved, active, allocated and requested bytes after each event."""
        self.started = (0, 0, 0, 0)
        self.next_address = 1 << 40

    def record(self) -> None:
        """Begin recording anew."""
        self.events, self.amounts, self.started = [], [], self._now()

    def _now(self) -> tuple[int, int, int, int]:
        return self.reserved, self.active, self.allocated, self.requested

    def note(self, action: str, address: int, size: int, stream: int, frames: Any = (), **others: Any) -> None:
        """Record an event."""
        event = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": len(self.events), **others}
        self.events.append(event | ({"frames": frames} if frames else {}))
        self.amounts.append(self._now())

    def rounded(self, size: int) -> int:
        """Bytes of a block for so many bytes."""
        if size < 512:
            return 512
        if self.parts > 1 and size > 512 * self.parts:
            floor = 1
            while floor * 2 <= size:
                floor *= 2
            step = floor // self.parts
            while floor < size:
                floor += step
            return floor
        return (size + 511) // 512 * 512

    def malloc(self, size: int, stream: int = 0, frames: Any = ()) -> int:
        """Address of so many bytes."""
        taken = self.rounded(size)
        pool = stream, taken <= MIB
        block = self._fitting(pool, taken) or self._grown(pool, taken, size)
        self._take_out(block)
        left = block.size - taken
        most = self.max_split or 1 << 60
        if left >= 512 if pool[1] or self.expandable else left > MIB and taken < most:
            self._put(Block(block.address + taken, left, block.segment))
            block.size = taken
        block.state, block.requested, block.frames = "active_allocated", size, frames
        self.active += block.size
        self.allocated += block.size
        self.requested += size
        self.note("alloc", block.address, size, stream, frames)
        return block.address

    def free(self, address: int, *, completes: bool = True) -> None:
        """Ask for a block to be freed; where it does not complete, another stream still reads it."""
        block = self.blocks[address]
        self.allocated -= block.size
        block.state = "active_pending_free"
        self.note("free_requested", address, block.requested, self.pools[block.segment][0])
        if completes:
            self.complete(address)

    def complete(self, address: int) -> None:
        """Nobody reads a block any more: it is free, and one with its free neighbours."""
        block = self.blocks[address]
        stream = self.pools[block.segment][0]
        self.active -= block.size
        self.requested -= block.requested
        size, block.state, block.requested, block.frames = block.requested, "inactive", 0, ()
        self._put(block)
        for other in self._neighbours(block):
            self._take_out(other)
            self._take_out(block)
            low, high = sorted((block, other), key=lambda each: each.address)
            low.size += high.size
            del self.blocks[high.address], self.addresses[bisect.bisect_left(self.addresses, high.address)]
            block = low
            self._put(block)
        self.note("free_completed", address, size, stream)

    def empty_cache(self) -> None:
        """Give back what is free: whole segments, of those that grow whole pages."""
        for block in [block for block in self.blocks.values() if block.state == "inactive"]:
            stream, small = self.pools[block.segment]
            page = (2 if small else 20) * MIB
            if self.expandable:
                base = block.segment
                end = block.address + block.size
                low, high = base - (base - block.address) // page * page, base + (end - base) // page * page
                if low >= high:
                    continue
                self._remove(block)
                for start, stop in ((block.address, low), (high, end)):
                    if start < stop:
                        self._put(Block(start, stop - start, base))
                self.reserved -= high - low
                self.note("segment_unmap", low, high - low, stream)
            elif block.address == block.segment and block.size == self.extents[block.segment] - block.segment:
                self._remove(block)
                self.reserved -= block.size
                self.note("segment_free", block.address, block.size, stream)

    def snapshot(self, max_entries: int | None = None, device: int = 0) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot`` gives: segments, and the events that were kept."""
        segments: list[dict[str, Any]] = []
        for address in self.addresses:
            block = self.blocks[address]
            last = segments[-1] if segments else None
            if last is None or last["base"] != block.segment or last["address"] + last["total_size"] != address:
                stream, small = self.pools[block.segment]
                last = {"base": block.segment, "address": address, "total_size": 0, "stream": stream, "blocks": []}
                last |= {"segment_type": "small" if small else "large", "segment_pool_id": (0, 0), "device": device}
                segments.append(last | {"is_expandable": self.expandable})
            segments[-1]["total_size"] += block.size
            entry = {"address": address, "size": block.size, "requested_size": block.requested, "state": block.state}
            segments[-1]["blocks"].append(entry | {"frames": block.frames or []})
        parts = {str(1 << power): self.parts for power in range(16)}
        settings = {"max_split_size": -1 if self.max_split is None else self.max_split, "roundup_power2_divisions": parts}
        events = self.events if max_entries is None else self.events[-max_entries:]
        traces: list[Any] = [[] for _ in range(device)]
        return {
            "segments": [{name: value for name, value in each.items() if name != "base"} for each in segments],
            "device_traces": [*traces, events],
            "allocator_settings": settings | {"expandable_segments": self.expandable},
        }

    def _fitting(self, pool: tuple[int, bool], taken: int) -> Block | None:
        """The smallest free block that is large enough."""
        free = self.free_blocks[pool]
        at = bisect.bisect_left(free, (taken, 0))
        if at == len(free):
            return None
        size, address = free[at]
        most = self.max_split or 1 << 60
        # Blocks that are not split are for what nearly fills them.
        is_apart = not pool[1] and (taken < most <= size or (taken >= most and size >= taken + 20 * MIB))
        return None if is_apart else self.blocks[address]

    def _grown(self, pool: tuple[int, bool], taken: int, size: int) -> Block:
        """A free block in memory that comes from the device."""
        stream, small = pool
        page = (2 if small else 20) * MIB
        if self.expandable:
            base = next((base for base, own in self.pools.items() if own == pool), None)
            if base is None:
                base = self.next_address
                self.next_address += 1 << 40
                self.pools[base], self.extents[base] = pool, base
            end = self.extents[base]
            before = self._before(end)
            tail = before if before is not None and before.segment == base and before.state == "inactive" else None
            tail = tail if tail is not None and tail.address + tail.size == end else None
            needed = -(-(taken - (0 if tail is None else tail.size)) // page) * page
            self._check(needed, size, stream)
            self.extents[base] = end + needed
            self.reserved += needed
            self.note("segment_map", end, needed, stream)
            if tail is None or self.blocks.get(tail.address) is not tail:
                # To look for memory, what was free at the end may have been given back.
                self._put(Block(end, needed, base))
                return self.blocks[end] if needed >= taken else self._grown(pool, taken, size)
            self._take_out(tail)
            tail.size += needed
            self._put(tail)
            return tail
        needed = 2 * MIB if small else 20 * MIB if taken < 10 * MIB else -(-taken // (2 * MIB)) * 2 * MIB
        self._check(needed, size, stream)
        address = self.next_address
        self.next_address += needed + 4 * MIB
        self.pools[address], self.extents[address] = pool, address + needed
        self.reserved += needed
        self.note("segment_alloc", address, needed, stream)
        self._put(Block(address, needed, address))
        return self.blocks[address]

    def _check(self, needed: int, size: int, stream: int) -> None:
        if self.reserved + needed > self.limit:
            self.empty_cache()
        if self.reserved + needed > self.limit:
            self.note("oom", 0, size, stream, device_free=self.limit - self.reserved)
            del self.events[-1]["addr"]
            raise OutOfMemoryError

    def _before(self, address: int) -> Block | None:
        at = bisect.bisect_left(self.addresses, address)
        return self.blocks[self.addresses[at - 1]] if at else None

    def _neighbours(self, block: Block) -> Iterable[Block]:
        """Free blocks that touch it, of the same segment."""
        at = bisect.bisect_left(self.addresses, block.address)
        for other in [self.blocks[self.addresses[near]] for near in (at - 1, at + 1) if 0 <= near < len(self.addresses)]:
            low, high = sorted((block, other), key=lambda each: each.address)
            if other.segment == block.segment and other.state == "inactive" and low.address + low.size == high.address:
                yield other

    def _put(self, block: Block) -> None:
        """Have a free block."""
        if block.address not in self.blocks:
            self.blocks[block.address] = block
            bisect.insort(self.addresses, block.address)
        bisect.insort(self.free_blocks[self.pools[block.segment]], (block.size, block.address))

    def _take_out(self, block: Block) -> None:
        """A block is free no more."""
        free = self.free_blocks[self.pools[block.segment]]
        del free[bisect.bisect_left(free, (block.size, block.address))]

    def _remove(self, block: Block) -> None:
        """A free block is there no more."""
        self._take_out(block)
        del self.blocks[block.address], self.addresses[bisect.bisect_left(self.addresses, block.address)]
