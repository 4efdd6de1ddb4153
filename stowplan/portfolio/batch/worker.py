"""A process that solves inputs of a batch, one by one: ``python -m stowplan.portfolio.batch.worker PARENT FUNCTION``.

Tasks come on standard input, outcomes go out on what was standard output. It ends with its parent, and what it has started ends
with it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, cast

import msgspec

from stowplan import kinds
from stowplan.child_process import begin, read_message
from stowplan.models.light_imports import light_imports
from stowplan.portfolio.batch.task import Outcome, Task
from stowplan.portfolio.run.messages import write_message
from stowplan.portfolio.run.process_memory import prefer_to_end

#: Where memory runs out, an input can be done without, and a candidate of it sooner.
OOM_SCORE = 250


def main() -> None:
    """Do tasks until the parent has no more."""
    incoming, outgoing = begin(int(sys.argv[1]))
    prefer_to_end(OOM_SCORE)
    light_imports()
    work = cast(Callable[[Task], Outcome], kinds.load(sys.argv[2]))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, tasks), daemon=True).start()
    while True:
        write_message(outgoing, work(tasks.get()))


def _listen(incoming: BinaryIO, tasks: queue.SimpleQueue[Task]) -> None:
    """Take in tasks until the parent goes away; then end the process, whatever it is doing."""
    while (data := read_message(incoming)) is not None:
        tasks.put(msgspec.msgpack.decode(data, type=Task))
    os._exit(0)


if __name__ == "__main__":
    main()
