"""Runs a batch: skips inputs that are finished, passes the others to workers, and writes the results.

``stowplan batch`` calls :func:`run_batch`. A *batch* is the solving of many inputs with the same settings. A *job* is the
solving of one input in a process of its own. A *task* is the message that tells a worker to solve one input
(:class:`~stowplan.portfolio.batch.task.Task`).

For each input the batch writes the plan, ``NAME.plan.json``, and with ``settings.certify`` the certificate of the bound,
``NAME.proof.json``. Then it writes the *record* with the settings and the result, ``NAME.result.json``
(:class:`~stowplan.portfolio.batch.records.Record`), and finally a line in the *journal*, one file for all inputs. An input is
*finished*, and need not be solved again, under two conditions: its record belongs to the same problem and the same settings,
and its plan and its certificate exist as well. A single process, which holds the lock of the folder, writes all files; the
others only compute. Any process may therefore be killed at any time, and the next run continues from the files that exist.
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

#: Name of the lock file in the output folder. The process that writes there holds its lock.
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
    """Solve the inputs of a batch. An input that fails is recorded, and the others are solved all the same.

    Parameters
    ----------
    items
        The inputs.
    folder
        Output folder for plans and records; it is created if it does not exist.
    settings
        How to read and solve every input.
    fresh
        Whether to solve finished inputs again.
    on_start
        Called with each input before it is read, and again before it is tried again.
    jobs
        Number of inputs that are solved in parallel, each in a process of its own, which in turn starts workers for its
        candidates. 0 stands for the number of processor cores divided by ``settings.workers``, but at least 1. If such a
        process is killed, its input is tried again; after :data:`~stowplan.portfolio.batch.workers.MOST_TRIES` tries it counts
        as failed. With 1, which is the default without a scheduler, inputs are solved in this process.
    memory_budget
        Bytes for all jobs together; None for no limit. A job counts as ``settings.workers + 1`` times
        ``settings.memory_limit``, and as many jobs run at the same time as fit, at most ``jobs``. If ``settings.memory_limit``
        is None, it is chosen so that ``jobs`` jobs fit into the budget.
    scheduler
        Address of a Dask scheduler (``tcp://host:port``). The cluster's workers read and solve the inputs, under the same paths
        as on this machine. They solve ``jobs`` inputs at a time, or as many as the cluster has threads if ``jobs`` is None or
        0. With the default, None, this machine solves the inputs.
    journal
        File that gets a JSON line ``{"name": ..., "record": ...}`` for each result; by default ``results.jsonl`` in the output
        folder.
    cancel
        Event that ends the run, as Ctrl-C does: inputs that are being solved return their best plans so far.

    Yields
    ------
    (Item, Record, bool)
        Each input with its record, and whether it was finished before. With one job they come in the order of ``items``,
        otherwise in the order in which they end. After a cancellation, inputs that were being solved come last, and inputs that
        had not been started are left out. With several jobs, running inputs have :data:`LAST_SECONDS` to return.

    Raises
    ------
    InputError
        The output folder or the journal cannot be created or written, another batch is writing there, a target or a folder of
        ``settings.xla_plans`` does not exist, or no scheduler answers.
    UsageError
        A setting or an argument has a wrong type or is out of range, the scheduler's address is malformed, two targets are for
        one sort of input, no job fits into the budget, or there are both a budget and a scheduler.
    MissingDependencyError
        A scheduler is named, and Dask is not installed.
    KeyboardInterrupt
        With one job, Ctrl-C came while an input was being read.
    """
    output = Path(folder)
    settings = check_settings(settings)
    flag("fresh {}", fresh)
    most, settings = _limit_jobs(jobs, memory_budget, settings, scheduler)
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
            """The task of the input with this number in ``items``, which is about to be read."""
            item = items[number]
            if on_start is not None:
                on_start(item)
            # Workers on other machines have another working directory.
            folder = Path() if scheduler is None else Path.cwd()
            return _make_task(item, folder, output, settings, targets, fresh)

        if workers is None:
            outcomes: Iterator[tuple[int, Outcome]] = (
                (number, solve_task(begin(number), cancel)) for number in range(len(items))
            )
        else:
            outcomes = _solve_in_parallel(workers, range(len(items)), begin, cancel or threading.Event())
        for number, outcome in outcomes:
            record, was_finished = _store_outcome(items[number], output, outcome, settings, lines)
            yield items[number], record, was_finished
            if record.exit_code == CANCELLED and workers is None:
                return


def _workers(most: int, scheduler: str | None) -> Workers | None:
    """The workers that solve at most ``most`` inputs at a time; None if this process solves them itself.

    Raises the errors of :class:`~stowplan.portfolio.batch.workers.DaskWorkers`.
    """
    if scheduler is None:
        return None if most == 1 else LocalWorkers(most)
    from stowplan.portfolio.batch.workers import DaskWorkers

    return DaskWorkers(scheduler, most)


def _limit_jobs(jobs: int | None, budget: int | None, settings: Settings, scheduler: str | None) -> tuple[int, Settings]:
    """The number of parallel jobs (0 for as many as a cluster has threads), and the settings.

    If there is a memory budget but no memory limit, the settings get a limit that is derived from the budget. Raises UsageError
    if an argument is no whole number or is too small, if no job fits into the budget, or if the budget is combined with a
    scheduler.
    """
    most = (1 if scheduler is None else 0) if jobs is None else whole("{} jobs", jobs, 0)
    if scheduler is not None:
        if budget is not None:
            raise UsageError("a memory budget is for this machine, not for a scheduler's: give its workers limits of their own")
        return most, settings
    if not most:
        import joblib

        # joblib takes affinity masks and the limits of containers into account.
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


#: After a cancellation, running inputs have LAST_SECONDS to return their best plans. The loop that waits for outcomes checks
#: every _LOOK_SECONDS whether it was cancelled.
LAST_SECONDS, _LOOK_SECONDS = 5.0, 0.1


def _solve_in_parallel(
    workers: Workers, order: Sequence[int], begin: Callable[[int], Task], cancel: threading.Event
) -> Iterator[tuple[int, Outcome]]:
    """Yield the numbers of inputs with their outcomes as they arrive.

    A task is *lost* if its worker ended without an outcome. Its input is tried again after all others, and counts as failed
    once it was lost ``workers.tries`` times.

    Parameters
    ----------
    workers
        The workers that solve the inputs.
    order
        Numbers of the inputs in the order in which they are started.
    begin
        Function that makes the task of the input with a number.
    cancel
        Event that ends the loop. Ctrl-C sets it.
    """
    waiting, tasks, lost = deque(order), dict[int, Task](), Counter[int]()
    while waiting or tasks:
        if cancel.is_set():
            yield from _collect_cancelled(workers, len(tasks))
            return
        while waiting and workers.has_room():
            # If the workers cannot tell which task was to blame for a loss, a lost input is tried again alone.
            if lost[waiting[0]] and tasks and not workers.blames:
                break
            number = waiting.popleft()
            tasks[number] = begin(number)
            workers.start(number, tasks[number])
            if lost[number] and not workers.blames:
                break
        try:
            result = workers.take(_LOOK_SECONDS)
        except KeyboardInterrupt:
            cancel.set()
            continue
        if result is None:
            continue
        number, outcome = result
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


def _collect_cancelled(workers: Workers, count: int) -> Iterator[tuple[int, Outcome]]:
    """Yield the outcomes of the ``count`` tasks that are running when a batch is cancelled.

    A task that does not return within :data:`LAST_SECONDS` is not recorded.
    """
    workers.cancel()
    end = time.monotonic() + LAST_SECONDS
    for _ in range(count):
        number, outcome = workers.take(max(0.0, end - time.monotonic())) or (0, None)
        if isinstance(outcome, Outcome):
            yield number, outcome


def _make_task(item: Item, folder: Path, output: Path, settings: Settings, targets: tuple[str, ...], fresh: bool) -> Task:
    """The task of an input. Relative paths of the item and in the settings refer to ``folder``; ``output`` has the results."""
    return Task(
        path=os.fsencode(folder / item.path),
        folder=os.fsencode(folder),
        input=files.printable(item.path),
        plan=files.printable(item.plan_path(output).name),
        settings=settings,
        targets=targets,
        earlier=None if fresh else _finished_digests(item, output, settings),
        kinds=kinds.import_paths(),
        formats=formats.registered(),
    )


def _finished_digests(item: Item, output: Path, settings: Settings) -> Finished | None:
    """The digests of the problem and of XLA's plan in the input's record; None if the input is not finished.

    It is not finished if the record cannot be read, has no result, was cancelled or belongs to other settings, or if its plan
    or its certificate is missing.
    """
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


def _store_outcome(item: Item, output: Path, outcome: Outcome, settings: Settings, journal: Journal) -> tuple[Record, bool]:
    """Write the outcome of an input; returns its record, and whether it had been finished before.

    The plan and the certificate are written first, then the record, whose existence says that both are complete, and then the
    line of the journal. If the plan or the certificate cannot be written, the record says so. Raises InputError if the record
    or the journal cannot be written, or if an earlier record can no longer be read.
    """
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
    """Write the files of an outcome. An old record is removed first and the new one written last, so that every record is
    valid. Old files that the outcome does not have are removed. Raises InputError if a file cannot be written."""
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
