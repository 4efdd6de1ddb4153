"""A batch: what is finished is known again, what is not is given to workers, what comes of it is written.

Each input gives two files, ``NAME.plan.json`` and, written after it, ``NAME.result.json``
(:class:`~stowplan.portfolio.batch.records.Record`); then a line in the journal. An input counts as finished when its record is
there, is of the same problem and the same settings, and its plan is there too: what is finished need not be solved again. Files
and journal are written by one process alone, which holds the folder's lock; all others only compute. So that process and any
other may be killed at any moment: the next run goes on from what is written.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from stowplan import files, kinds
from stowplan.arguments import flag, whole
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.frontends import formats
from stowplan.frontends.formats import check_targets
from stowplan.portfolio.batch.records import (
    CANCELLED,
    INTERNAL_ERROR,
    Journal,
    Record,
    Settings,
    check_settings,
    describe_failure,
    only_writer,
    remove_temporary,
)
from stowplan.portfolio.batch.task import Finished, Item, Outcome, Task, failure, solve_task
from stowplan.portfolio.batch.workers import LocalWorkers, Workers
from stowplan.process_memory import as_mebibytes

#: Name of the journal in the output folder.
JOURNAL = "results.jsonl"

#: Held by whoever writes into the output folder.
_LOCK = ".batch.lock"


def run_batch(
    items: Sequence[Item],
    folder: str | Path,
    settings: Settings,
    *,
    fresh: bool = False,
    on_start: Callable[[Item], None] | None = None,
    jobs: int | None = None,
    memory_budget: int | None = None,
    scheduler: str | None = None,
    journal: str | Path | None = None,
    cancel: threading.Event | None = None,
) -> Generator[tuple[Item, Record, bool], None, None]:
    """Solve inputs; one that fails is recorded, and does not keep others from their turn.

    Parameters
    ----------
    folder
        For plans and records; made where it is missing.
    fresh
        Solve also what is finished.
    on_start
        Called with each input before it is read.
    jobs
        Inputs solved side by side, each in a process of its own with the workers of its candidates beside it; 0 for as many as
        there are processor cores for. A process that is killed costs its input another try, and after
        :data:`~stowplan.portfolio.batch.workers.MOST_TRIES` of them the input has failed. With 1 (and None), inputs are solved
        in this process.
    memory_budget
        Bytes for all jobs. A job counts as ``settings.workers + 1`` times ``settings.memory_limit``, and so many are at work as
        fit; where that limit is None, it becomes what ``jobs`` leave each process of the budget.
    scheduler
        Address of a Dask scheduler (``tcp://host:port``): inputs are read and solved by its workers, under the same paths as
        here, as many at a time as it has threads, or ``jobs``.
    journal
        File that gets a JSON line for each result, ``{"name": ..., "record": ...}``; ``results.jsonl`` in the folder where none
        is named.
    cancel
        Setting it ends the run, as Ctrl-C does: what is at work returns its best plan so far.

    Yields
    ------
    Each input with its record, and whether it was finished before: in their order with one job, else as they come. Cancelled
    ones (Ctrl-C) are the last; side by side they have :data:`LAST_SECONDS` for it.

    Raises
    ------
    InputError
        The output folder or the journal cannot be made or written to, another batch is writing there, a target is none, or no
        scheduler answers.
    UsageError
        A setting of a wrong type or out of range, two targets for inputs of one kind, or a budget that no job fits into.
    MissingDependencyError
        A scheduler is named, and Dask is not installed.
    """
    output = Path(folder)
    settings = check_settings(settings)
    flag("fresh {}", fresh)
    most, settings = _room(jobs, memory_budget, settings, scheduler)
    targets = check_targets(settings.targets)
    if scheduler is not None:
        targets = tuple(os.path.abspath(target) if os.path.exists(target) else target for target in targets)
    with ExitStack() as stack:
        workers = _workers(most, scheduler)
        if workers is not None:
            stack.callback(workers.close)
        files.make_folder(output)
        stack.enter_context(only_writer(output / _LOCK))
        lines = stack.enter_context(closing(Journal(output / JOURNAL if journal is None else Path(journal))))
        for place in {item.record_path(output).parent for item in items}:
            if place.is_dir():
                remove_temporary(place, r".+\.(plan|proof|result)\.json")

        def begin(number: int) -> Task:
            """The task of an input whose turn has come."""
            item = items[number]
            if on_start is not None:
                on_start(item)
            # Other machines' workers run in folders of their own.
            folder = Path() if scheduler is None else Path.cwd()
            return _task(item, folder, output, settings, targets, fresh)

        if workers is None:
            outcomes: Iterator[tuple[int, Outcome]] = (
                (number, solve_task(begin(number), cancel)) for number in range(len(items))
            )
        else:
            outcomes = _side_by_side(workers, range(len(items)), begin, cancel or threading.Event())
        for number, outcome in outcomes:
            record, was_finished = _keep(items[number], output, outcome, settings, lines)
            yield items[number], record, was_finished
            if record.exit_code == CANCELLED and workers is None:
                return


def _workers(most: int, scheduler: str | None) -> Workers | None:
    """What inputs are given to; None where this process solves them itself."""
    if scheduler is None:
        return None if most == 1 else LocalWorkers(most)
    from stowplan.portfolio.batch.workers import DaskWorkers

    return DaskWorkers(scheduler, most)


def _room(jobs: int | None, budget: int | None, settings: Settings, scheduler: str | None) -> tuple[int, Settings]:
    """Jobs side by side, 0 for as many as a cluster has threads, and the settings with what memory each process may hold."""
    most = (1 if scheduler is None else 0) if jobs is None else whole("{} jobs", jobs, 0)
    if scheduler is not None:
        if budget is not None:
            raise UsageError("a memory budget is for this machine, not for a scheduler's: give its workers limits of their own")
        return most, settings
    if not most:
        import joblib

        # It knows of affinity masks and of the limits of containers.
        most = max(1, int(joblib.cpu_count()) // settings.workers)
    if budget is None:
        return most, settings
    budget = whole("a memory budget of {} bytes", budget, 1)
    processes = settings.workers + 1
    if settings.memory_limit is None:
        if budget < most * processes:
            raise UsageError(
                f"found a memory budget of {budget} bytes for {most} x {processes} processes, expected some for each"
            )
        return most, check_settings(msgspec.structs.replace(settings, memory_limit=budget // (most * processes)))
    job = settings.memory_limit * processes
    if job > budget:
        raise UsageError(
            f"found a memory budget of {as_mebibytes(budget)}, expected at least {as_mebibytes(job)}: the memory limit of "
            f"{as_mebibytes(settings.memory_limit)} for each of {settings.workers} workers and the process they belong to"
        )
    return min(most, budget // job), settings


#: Seconds that what is at work when a run is cancelled has for its best plan so far, and between two looks at the cancel.
LAST_SECONDS, _LOOK_SECONDS = 5.0, 0.1


def _side_by_side(
    workers: Workers, order: Sequence[int], begin: Callable[[int], Task], cancel: threading.Event
) -> Iterator[tuple[int, Outcome]]:
    """Outcomes as they come. What is lost is tried again when all others have had their turn."""
    waiting, tasks, lost = deque(order), dict[int, Task](), Counter[int]()
    while waiting or tasks:
        if cancel.is_set():
            yield from _last(workers, len(tasks))
            return
        while waiting and workers.has_room():
            # Where nobody knows whose fault it was, those that were lost have their next try alone.
            if lost[waiting[0]] and tasks and not workers.blames:
                break
            number = waiting.popleft()
            tasks[number] = begin(number)
            workers.start(number, tasks[number])
            if lost[number] and not workers.blames:
                break
        try:
            taken = workers.take(_LOOK_SECONDS)
        except KeyboardInterrupt:
            cancel.set()
            continue
        if taken is None:
            continue
        number, outcome = taken
        task = tasks.pop(number)
        if isinstance(outcome, Outcome):
            yield number, outcome
            continue
        lost[number] += 1
        if outcome.is_final:
            yield number, failure(task, INTERNAL_ERROR, outcome.why)
        elif lost[number] >= workers.tries:
            yield number, failure(task, INTERNAL_ERROR, f"{outcome.why}, in each of {workers.tries} tries")
        else:
            waiting.append(number)


def _last(workers: Workers, count: int) -> Iterator[tuple[int, Outcome]]:
    """Outcomes of ``count`` tasks that are at work when a run is cancelled; what ends without any is not done."""
    workers.cancel()
    end = time.monotonic() + LAST_SECONDS
    for _ in range(count):
        number, outcome = workers.take(max(0.0, end - time.monotonic())) or (0, None)
        if isinstance(outcome, Outcome):
            yield number, outcome


def _task(item: Item, folder: Path, output: Path, settings: Settings, targets: tuple[str, ...], fresh: bool) -> Task:
    return Task(
        path=os.fsencode(folder / item.path),
        folder=os.fsencode(folder),
        input=files.printable(item.path),
        plan=files.printable(item.plan_path(output).name),
        settings=settings,
        targets=targets,
        earlier=None if fresh else _finished(item, output, settings),
        kinds=kinds.import_paths(),
        formats=formats.registered(),
    )


def _finished(item: Item, output: Path, settings: Settings) -> Finished | None:
    """What an earlier run was made from that this one would only repeat, if neither input nor XLA's plan has changed."""
    try:
        record = Record.load(item.record_path(output))
    except InputError:
        return None
    result = record.result
    if result is None or record.settings != settings or record.exit_code == CANCELLED:
        return None
    has_plan = result["plan"] is None or item.plan_path(output).is_file()
    has_proof = "proof" not in result or item.proof_path(output).is_file()
    return Finished(str(result["provenance"]["problem_digest"]), record.xla_plan) if has_plan and has_proof else None


def _keep(item: Item, output: Path, outcome: Outcome, settings: Settings, journal: Journal) -> tuple[Record, bool]:
    """Write what came of an input: plan and certificate, then the record, which vouches for them, then the line."""
    path = item.record_path(output)
    if outcome.record is None:
        record = Record.load(path)
    else:
        record = Record.decode(outcome.record)
        if not outcome.is_kept:
            return record, False
        try:
            _write(item, output, outcome)
        except StowplanError as error:
            code, text = describe_failure(error)
            record = Record(input=record.input, settings=settings, exit_code=code, error=text)
            _write(item, output, Outcome(files.encode(record)))
    name = files.printable(item.name)
    if not (outcome.record is None and journal.has(name, record)):
        journal.add(name, record)
    return record, outcome.record is None


def _write(item: Item, output: Path, outcome: Outcome) -> None:
    record = item.record_path(output)
    files.make_folder(record.parent)
    record.unlink(missing_ok=True)
    for path, data in ((item.plan_path(output), outcome.plan), (item.proof_path(output), outcome.proof)):
        if data is not None:
            files.write_atomic(path, data)
        else:
            path.unlink(missing_ok=True)
    if outcome.record is not None:
        files.write_atomic(record, outcome.record)
