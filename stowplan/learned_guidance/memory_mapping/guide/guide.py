"""The learned guide, a trained network that predicts a hint for a problem; and an untrained guide for comparison.

The weights are in a file of plain arrays, which is read without torch and without executing code from it.

The network is a graph network over the accesses and steps of a program; the same code runs with numpy and with torch. Each
round has three kinds of messages. Accesses of the same step exchange messages. Each gap tells every step that it spans how much
memory and channel time it would occupy, and receives the mean of the states of these steps; this works like a learned price of
memory at every moment. And each access receives messages from the previous and the next access of its tensor. The outputs are
two scores for each access, from which :func:`marginals` computes probabilities: that the access is *fast*, in fast memory, and
that its tensor is *kept*, that is, stays in fast memory over the gap after the access.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide.features import NAMES, features, gains
from stowplan.learned_guidance.memory_mapping.guide.program import Program, program
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import hint
from stowplan.models.memory_mapping.problem import Problem

#: Score of an impossible choice; as a log-odds it is practically a probability of 0. Other scores are within -12 and 12.
NEVER = -30.0


def marginals(
    fast: Any, keep: Any, glued: Any, positions: Sequence[Any], softplus: Callable[[Any], Any], sigmoid: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Probabilities that each access is fast, and that its tensor stays over the gap after it; shape ``[accesses]``.

    Parameters
    ----------
    fast, keep : shape ``[accesses]``
        Scores. ``keep`` is :data:`NEVER` for gaps over which nothing may stay, which include those after last accesses.
    glued : shape ``[accesses]``, of booleans
        Gaps whose two accesses are both fast, in which case the tensor stays, or both slow.
    positions
        The second accesses of all tensors that have at least two, then the third ones, and so on.
    softplus, sigmoid
        Functions of the library of the arrays.
    """
    both = softplus(keep)
    # The forward-backward algorithm. ``forward`` are the log-odds of being fast given the accesses before and the access
    # itself, and ``backward`` those given the accesses after it.
    forward, backward = fast + 0.0, fast * 0.0
    for here in positions:
        before = here - 1
        odds = forward[before]
        free = softplus(odds + both[before]) - softplus(odds)
        forward[here] = fast[here] + _where(glued[before], odds + keep[before], free)
    for here in reversed(positions):
        before = here - 1
        odds = fast[here] + backward[here]
        free = softplus(odds + both[before]) - softplus(odds)
        backward[before] = _where(glued[before], odds + keep[before], free)
    is_fast = sigmoid(forward + backward)
    after = fast * 0.0
    after[:-1] = (fast + backward)[1:]
    # Logarithm of the sum of the weights of (slow, slow), (fast, slow), (slow, fast), and (fast, fast) without and with
    # staying.
    total = softplus(forward) + softplus(after + softplus(forward + both) - softplus(forward))
    stays = _exp(forward + after + keep - total)
    return is_fast, _where(glued, is_fast, stays) * (keep > NEVER)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    """Elements of ``yes`` where the condition is true, otherwise of ``no``, in a form that works with both libraries."""
    return yes * condition + no * ~condition


def _exp(value: Any) -> Any:
    return value.exp() if hasattr(value, "exp") else np.exp(value)


#: Widths of the state of an access or step, of the hidden layer of a round, of the memory messages and of the channel messages;
#: and the number of rounds.
WIDTH, HIDDEN, MEMORY, CHANNEL, ROUNDS = 32, 64, 8, 4, 4


#: Number of rows that NumPy computes together.
ROWS = 1024

#: Largest number of multiplications in a matrix product that OpenBLAS computes in one thread. Its threads busy-wait for each
#: other, which doubles the CPU time on a loaded machine.
ONE_THREAD = 200_000


class Graph(NamedTuple):
    """One or several programs as the network sees them, with A accesses and T steps; arrays of numpy or tensors."""

    features: Any
    """[A, F] features."""
    before: Any
    """[A] the tensor's previous access; any number if there is none."""
    after: Any
    """[A] the tensor's next access; any number if there is none."""
    has_before: Any
    """[A, 1] 1 if there is a previous access, otherwise 0."""
    has_after: Any
    """[A, 1] 1 if there is a next access, otherwise 0."""
    place: Any
    """[A] number of accesses of the tensor before this one."""
    left: Any
    """[A] number of accesses of the tensor after this one."""
    step: Any
    """[A] step of the access."""
    begun: Any
    """[A] step of the previous access; the first step of the program if there is none."""
    end: Any
    """[A] step of the next access; the step of the access itself if there is none."""
    occupies: Any
    """[A, 1] part of the capacity that the tensor would occupy over the gap; 0 if it cannot stay."""
    copies: Any
    """[A, 1] copy time divided by the time of the gap before the access."""
    per_step: Any
    """[T, 1] 1 divided by the number of accesses of the step."""
    barred: Any
    """[A] whether the tensor does not fit into fast memory."""
    never_kept: Any
    """[A] whether the tensor cannot stay over the gap."""
    glued: Any
    """[A] see :func:`marginals`."""
    positions: list[Any]
    """See :func:`~stowplan.learned_guidance.memory_mapping.guide.guide.marginals`."""


def graph(program: Program) -> Graph:
    """A program as the network sees it, in numpy."""
    of, total = program.tensor, len(program.tensor)
    place = np.arange(total) - program.first[of]
    last = place == np.diff(program.first)[of] - 1
    after = np.minimum(np.arange(total) + 1, max(0, total - 1))
    end = np.where(last, program.step, program.step[after] if total else 0)
    size = program.size[of] / program.capacity
    barred = size > 1
    never_kept = program.dead | last | barred
    # The copy time for the access, divided by the time since the access before.
    clock = np.concatenate([[0.0], np.cumsum(program.floor)])
    begun = np.where(place > 0, program.step[np.maximum(0, np.arange(total) - 1)], 0)
    time = clock[program.step] - clock[begun]
    needed = program.reads & (gains(program) > 0) & ~barred & (program.is_input[of] | (place > 0))
    copy = program.copy_in[of]
    copies = np.where(needed, copy / np.maximum(time, copy + 1.0), 0.0)
    counts = np.bincount(program.step, minlength=len(program.slow))
    longest = int(np.diff(program.first).max(initial=0))
    order = np.argsort(place, kind="stable")
    borders = np.searchsorted(place[order], np.arange(1, longest + 1))
    return Graph(
        features=features(program),
        before=np.maximum(0, np.arange(total) - 1),
        after=after,
        has_before=(place > 0).astype(np.float32)[:, None],
        has_after=(~last).astype(np.float32)[:, None],
        place=place,
        left=np.diff(program.first)[of] - 1 - place,
        step=program.step,
        begun=begun,
        end=end,
        occupies=np.where(never_kept, 0.0, size).astype(np.float32)[:, None],
        copies=copies.astype(np.float32)[:, None],
        per_step=(1.0 / np.maximum(1, counts)).astype(np.float32)[:, None],
        barred=barred,
        never_kept=never_kept,
        glued=program.glued & ~last & ~barred,
        positions=np.split(order, borders)[1:-1] if longest > 1 else [],
    )


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights."""
    of_name: dict[str, tuple[int, ...]] = {"mean": (len(NAMES),), "scale": (len(NAMES),)}

    def layer(name: str, into: int, out: int) -> None:
        of_name[f"{name}.weight"], of_name[f"{name}.bias"] = (into, out), (out,)

    layer("begin", len(NAMES), HIDDEN)
    layer("begun", HIDDEN, WIDTH)
    for number in range(ROUNDS):
        layer(f"{number}.meet", WIDTH, WIDTH)
        layer(f"{number}.occupy", WIDTH, MEMORY + CHANNEL)
        layer(f"{number}.step", 2 * WIDTH + MEMORY + CHANNEL, WIDTH)
        layer(f"{number}.hear", 6 * WIDTH, HIDDEN)
        layer(f"{number}.heard", HIDDEN, WIDTH)
    layer("end", 3 * WIDTH, HIDDEN)
    layer("scores", HIDDEN, 2)
    return of_name


def scores(weights: Mapping[str, Any], graph: Graph, library: Numpy) -> tuple[Any, Any]:
    """Scores of being fast and being kept, each of shape ``[accesses]``, as :func:`marginals` takes them.

    ``weights`` has the arrays that :func:`shapes` names, and ``library`` the operations for arrays of their type.

    In the code, h are the states of accesses, s the states of steps, and n the normalised states of accesses.
    """
    lib = library

    def layer(name: str, x: Any) -> Any:
        return lib.product(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]

    def begin(rows: slice) -> Any:
        return layer("begun", lib.relu(layer("begin", (graph.features[rows] - weights["mean"]) * weights["scale"])))

    total, steps = len(graph.features), len(graph.per_step)
    h = lib.by_rows(begin, total)
    s: Any = None
    length = lib.single(graph.end - graph.step + 1)[:, None]
    for number in range(ROUNDS):
        n = lib.normalised(h)
        met = lib.sums(lib.relu(layer(f"{number}.meet", n)), graph.step, steps) * graph.per_step
        shares = lib.sigmoid(layer(f"{number}.occupy", n))
        memory = _log_span_sums(lib, shares[:, :MEMORY] * graph.occupies, graph.step, graph.end, steps)
        copies = shares[:, MEMORY:] * graph.copies
        channel = _log_span_sums(lib, copies, graph.begun, graph.step, steps)
        s = lib.relu(layer(f"{number}.step", lib.joined([met if s is None else s, met, memory, channel])))
        sums = lib.cumulated(s)
        spanned = lib.single(sums[graph.end + 1] - sums[graph.step]) / length

        def hear(rows: slice, number: int = number, n: Any = n, s: Any = s, spanned: Any = spanned) -> Any:
            before, has_before = graph.before[rows], graph.has_before[rows]
            previous, following = n[before] * has_before, n[graph.after[rows]] * graph.has_after[rows]
            heard = lib.joined([n[rows], previous, following, s[graph.step[rows]], spanned[rows], spanned[before] * has_before])
            return layer(f"{number}.heard", lib.relu(layer(f"{number}.hear", heard)))

        h = h + lib.by_rows(hear, total)
    n = lib.normalised(h)

    def end(rows: slice) -> Any:
        following = n[graph.after[rows]] * graph.has_after[rows]
        return layer("scores", lib.relu(layer("end", lib.joined([n[rows], following, spanned[rows]]))))

    both = lib.by_rows(end, total)
    # Scores are bounded, so that only impossible choices get the score NEVER.
    bounded = 12.0 * (both / 12.0).clip(-1.0, 1.0)
    fast = bounded[:, 0] * ~graph.barred + NEVER * graph.barred
    keep = bounded[:, 1] * ~graph.never_kept + NEVER * graph.never_kept
    return fast, keep


def values(weights: Mapping[str, Any], graph: Graph, library: Numpy) -> tuple[Any, Any]:
    """Probabilities of being fast and of being kept, each of shape ``[accesses]``."""
    fast, keep = scores(weights, graph, library)
    return marginals(fast, keep, graph.glued, graph.positions, library.softplus, library.sigmoid)


def _log_span_sums(library: Numpy, amounts: Any, start: Any, end: Any, steps: int) -> Any:
    """For each step, the logarithm of 1 plus the sum of the amounts whose steps ``[start, end)`` include it; shape ``[T,
    columns]``."""
    change = library.sums(amounts, start, steps) - library.sums(amounts, end, steps)
    total = library.single(library.cumulated(change)[1:])
    return library.log1p(total.clip(0.0, None))


class Numpy:
    """The array operations that the network needs, by NumPy; a subclass may use another library."""

    def relu(self, x: Any) -> Any:
        """Return the rectified input, of any shape."""
        return np.maximum(x, 0)

    def sigmoid(self, x: Any) -> Any:
        """Return the logistic function, for any shape."""
        return 1 / (1 + np.exp(-x))

    def softplus(self, x: Any) -> Any:
        """Return log(1 + exp(x)), for any shape."""
        return np.logaddexp(0, x)

    def log1p(self, x: Any) -> Any:
        """Return log(1 + x), for any shape."""
        return np.log1p(x)

    def normalised(self, x: Any) -> Any:
        """Rows divided by the root of their mean square."""
        return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(1e-3))

    def joined(self, parts: list[Any]) -> Any:
        """The arrays concatenated along the last axis."""
        return np.concatenate(parts, axis=1)

    def sums(self, values: Any, index: Any, size: int) -> Any:
        """For each index, the sum of the rows with this index; shape ``[size, columns]``."""
        columns = [np.bincount(index, column, size) for column in values.T]
        return np.stack(columns, axis=1).astype(np.float32)

    def cumulated(self, values: Any) -> Any:
        """Exclusive prefix sums of the rows in double precision, with one row more."""
        first = np.zeros((1, values.shape[1]))
        return np.concatenate([first, np.cumsum(values, axis=0, dtype=np.float64)])

    def single(self, values: Any) -> Any:
        """The values in single precision."""
        return values.astype(np.float32)

    def product(self, rows: Any, weight: Any) -> Any:
        """The matrix product, computed some rows at a time (:data:`ONE_THREAD`)."""
        product = np.empty((len(rows), weight.shape[1]), np.float32)
        step = max(1, ONE_THREAD // weight.size)
        for first in range(0, len(rows), step):
            np.matmul(rows[first : first + step], weight, out=product[first : first + step])
        return product

    def by_rows(self, function: Callable[[slice], Any], total: int) -> Any:
        """A function of rows, computed some rows at a time, so that intermediate results stay in the cache."""
        return np.concatenate([function(slice(first, first + ROWS)) for first in range(0, max(1, total), ROWS)])


FORMAT = "stowplan.memory_mapping.guide"
VERSION = 1

#: The file of the guide that comes with the package.
SHIPPED = Path(str(resources.files("stowplan.learned_guidance") / "checkpoints" / "mmap_guide.npz"))

Weights = dict[str, NDArray[np.float32]]


def load(path: Path = SHIPPED) -> Weights:
    """Read the weights in a file; they are cached until the file changes.

    Raises
    ------
    InputError
        The file cannot be read, is not a file of guide weights, has another version, or is damaged.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    return _load(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=4)
def _load(path: Path, state: tuple[int, int, int]) -> Weights:
    """Read the weights in a file. ``state`` changes with the file, so that the cache does not return old weights."""
    arrays = files.read_arrays(path, "a learned guide")
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        value = arrays.get(name)
        if value is None or value.shape or value.item() != expected:
            given_value = "nothing" if value is None else str(value)[:40]
            raise InputError(f"found {given_value}, expected {expected}", source=path, place=name)
    weights: Weights = {}
    for name, shape in shapes().items():
        value = arrays.get(name)
        if value is not None and value.dtype.kind == "f":
            # Numbers that are too large for single precision become infinite, which is checked below.
            with np.errstate(over="ignore", invalid="ignore"):
                weights[name] = value.astype(np.float32)
        if value is None or name not in weights or value.shape != shape or not np.isfinite(weights[name]).all():
            given_value = "nothing" if value is None else f"{value.dtype} of shape {value.shape}"
            raise InputError(f"found {given_value}, expected finite floats of shape {shape}", source=path, place=name)
    return weights


def filled_hint(problem: Problem) -> Hint:
    """The hint of the untrained guide, which fills memory by density; its values are 0 or 1.

    The density of a gap is the saved time per byte and time. A tensor stays over a gap, and is fast at both ends of it, if it
    fits into fast memory beside all gaps of at least the same density. An access that reads is also fast if the channel has
    time for a copy of the tensor beside the copies of at least the same density. This takes about 10 us for each use, in one
    thread.
    """
    arrays = program(problem)
    rows = dict(zip(NAMES, features(arrays).T, strict=True))
    may = (rows["too large"] == 0) & (gains(arrays) > 0)
    # Features are logarithms of 1 plus the used part of the capacity, or of the channel's time.
    keep = (rows["gap denser twice mean"] <= 1) & (rows["dead"] == 0) & (rows["too large"] == 0)
    after = np.append(False, keep[:-1]) & (rows["first"] == 0)
    copied = (rows["gap channel denser, before"] <= 1) & (rows["reads"] > 0) & (rows["gap time to copy, before"] > 0)
    fast = keep | after | (may & copied)
    return hint(problem, fast.astype(float).tolist(), keep.astype(float).tolist(), source="filled")


def learned_hint(problem: Problem, path: Path = SHIPPED) -> Hint:
    """The hint of the trained network; takes about 20 us for each use, in one thread, without torch.

    Parameters
    ----------
    problem
        Any problem.
    path
        A file of weights, by default that of the package.

    Raises
    ------
    InputError
        The file cannot be read, is not that of a learned guide, has another version, or is damaged.
    """
    fast, keep = guided_values(problem, load(path))
    return hint(problem, fast.tolist(), keep.tolist(), source="learned")


def guided_values(problem: Problem, weights: Weights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities that each access is fast, and that its tensor stays over the gap after it; each of shape ``[accesses]``."""
    fast, keep = values(weights, graph(program(problem)), Numpy())
    return np.clip(fast, 0.0, 1.0), np.clip(keep, 0.0, 1.0)
