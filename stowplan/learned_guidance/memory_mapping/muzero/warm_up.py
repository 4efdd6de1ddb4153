"""``python -m stowplan.learned_guidance.memory_mapping.muzero.warm_up``: compile what training runs, for this machine and user.

It is a process of its own for the sake of limits: compiling takes half a minute, once, and nothing else can interrupt it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stowplan.compiled import is_warm, mark_warm

#: Seconds between two looks at whether to go on waiting.
_TICK = 0.05


#: Where it is noted that everything training runs has been compiled: room and name.
_MARKER = "learned_guidance", "training"


@contextmanager
def compiling() -> Iterator[Callable[[Callable[[], bool]], bool]]:
    """Compile in another process, where that is still to be done; leaving the context ends it.

    Yields
    ------
    A function that waits for it until ``should_stop()``, and says whether to go on: compiled or not, it has come to its end.
    """
    process = None
    if not is_warm(*_MARKER):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(should_stop: Callable[[], bool]) -> bool:
        while process is not None and process.poll() is None:
            if should_stop():
                return False
            time.sleep(_TICK)
        return True

    try:
        yield wait
    finally:
        if process is not None:
            process.kill()
            process.wait()


def main() -> None:
    """Train for a moment on a program of two steps, with both searches."""
    import torch

    from stowplan.learned_guidance.memory_mapping.game.kernel.state import smallest_problem, warm_up
    from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.training.run import run

    torch.set_num_threads(1)
    warm_up()
    config = TrainingConfig.cpu(
        games=2,
        warm_start_moves=1,
        local_search_moves=100,
        moves_per_iteration=2,
        updates_per_iteration=1,
        batch_size=2,
        reanalyse_fraction=1.0,
    )
    for changed in (config, config.changed(search=config.search.changed(method="puct"))):
        run(Trainer([smallest_problem()], changed), max_reports=2)
    mark_warm(*_MARKER)


if __name__ == "__main__":
    main()
