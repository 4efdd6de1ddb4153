"""Fitting a training step into so many bytes, and finding the largest size of it that fits: what users call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan.arguments import number, size, whole
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax.check import check_gradients
from stowplan.backends.jax.losses import with_policy
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.previews import Previews
from stowplan.backends.jax.report import FitReport, mib
from stowplan.backends.jax.search import SMALL, Search
from stowplan.backends.jax.training import Training
from stowplan.backends.xla.compiler import COMPILE_LIMIT
from stowplan.backends.xla.workload import versions
from stowplan.deadline import Deadline
from stowplan.errors import TimeLimitError
from stowplan.hardware.targets import Target, load_target, xla_chip

#: Previews and full compiles at most, unless told otherwise. All of jax's own policies and a plan may be compiled.
PREVIEWS, COMPILES = 6, 6

#: Previews of sizes at most, where the largest is looked for.
SIZES = 12


class Fitted(NamedTuple):
    """What came of it."""

    function: Callable[..., Any]
    """The function with its policy, not jitted."""
    report: FitReport
    policy: str
    """Lines to paste."""


class Largest(NamedTuple):
    """What came of looking for the largest size."""

    size: int
    fitted: Fitted


def fit(
    loss_or_step: Callable[..., Any],
    arguments: Sequence[Any],
    hbm: int | str,
    chip: str = "v5e",
    *,
    argnums: int | Sequence[int] = 0,
    donated: Sequence[int] = (),
    previews: int = PREVIEWS,
    compiles: int = COMPILES,
    folder: str | Path | None = None,
    time_limit: float | None = None,
    compile_limit: float = COMPILE_LIMIT,
    own_names: bool = False,
    check: bool = False,
    on_progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Fitted:
    """A policy of ``jax.checkpoint`` with which a training step is within so many bytes of a TPU's memory. No TPU is needed.

    Parameters
    ----------
    loss_or_step
        A loss: returns one float, and is compiled with its gradient. Or a step, which calls its loss by
        :class:`~stowplan.backends.jax.marked`. Not jitted.
    arguments
        Its arguments: trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings count.
    hbm
        Bytes that the program may have on a device at most, arguments and results included, or text such as ``"14 GiB"``.
    chip
        ``"v5e"``, or the name of its target, ``"tpu-v5e"``.
    argnums
        Of a loss: the arguments it is differentiated by.
    donated
        Positions of arguments whose memory the results may take.
    previews
        Previews at most, kept ones included.
    compiles
        Full compiles at most, by which policies within the limit are compared; 0 to go by what is made again.
    folder
        Where results are kept, and looked for.
    time_limit
        Seconds for everything. When they are over, a preview or compile that is running is ended, and the best policy of those
        that fit is returned; ``report.stop_reason`` says so. None for no limit.
    compile_limit
        Seconds for one preview or compile.
    own_names
        Whether plans are over names that the program has by ``checkpoint_name`` alone, as MaxText's are.
    check
        Whether gradients under the policy are compared with those without: on this machine's CPU, at full size.
    on_progress
        Called with a line before and after each preview and compile: the time, what it said, and the best policy so far.
    cancel
        Setting this event ends the search as the time limit does; so does Ctrl-C once a policy fits.

    Raises
    ------
    MemoryLimitError
        No policy that was tried is within the limit; says the least peak.
    UsageError
        Arguments that make no sense, a function without a backward pass, a limit below the arguments alone.
    GradientError
        Gradients that differ by more than the tolerance.
    CompileError
        A function that does not trace, or that XLA does not compile.
    MissingDependencyError
        Without jax, libtpu or cloudpickle.
    TimeLimitError
        The time was over before a policy was within the limit.
    """
    session = _Session(hbm, chip, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel)
    with session.compiler:
        given = (loss_or_step, arguments, argnums, donated, session.target, session.limit)
        return session.fit(session.compiler.within(lambda: Training(*given)))


def fit_largest(
    make: Callable[[int], Sequence[Any]],
    hbm: int | str,
    chip: str = "v5e",
    *,
    start: int = 8,
    multiple: int = 1,
    argnums: int | Sequence[int] = 0,
    previews: int = PREVIEWS,
    compiles: int = COMPILES,
    folder: str | Path | None = None,
    time_limit: float | None = None,
    compile_limit: float = COMPILE_LIMIT,
    own_names: bool = False,
    check: bool = False,
    on_progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Largest:
    """The largest size, as of a batch, with which a training step fits, and its policy.

    At ``start`` the policy of the least peak is found. Peaks under it at other sizes are predicted by a line through those that
    are known, and previewed, until a size fits and the next does not; the largest that fits is then fitted.

    Parameters
    ----------
    make
        Given a size: the function, its arguments, and maybe donated positions.
    start, multiple
        Where it begins; sizes are multiples of ``multiple``.
    hbm, chip, argnums, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel
        As of :func:`fit`; previews of sizes are not among ``previews``.

    Raises
    ------
    MemoryLimitError
        The least size does not fit.
    StowplanError
        As of :func:`fit`.
    """
    whole("a start of {}", start, least=1)
    whole("multiples of {}", multiple, least=1)
    session = _Session(hbm, chip, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel)

    def traced(count: int) -> Training:
        function, arguments, *places = make(count * multiple)
        donated: Sequence[int] = places[0] if places else ()
        # A size whose arguments alone are above the limit is one that does not fit.
        return Training(function, arguments, argnums, donated, session.target, 1 << 62)

    @functools.cache
    def training(count: int) -> Training:
        return session.compiler.within(lambda: traced(count))

    with session.compiler:
        first = max(1, start // multiple)
        small = session.search(training(first), 1 + len(SMALL))
        policy = small.least()

        def peak(count: int) -> int:
            reached = session.search(training(count), 1).peak(policy)
            session.say(f"size {count * multiple}: {mib(reached) if reached else 'refused'} of {mib(session.limit)}")
            return reached

        peaks = {first: small.peak(policy)}
        try:
            count = _largest(peaks, session.limit, peak)
        except TimeLimitError:
            # The largest so far is better than none.
            count = max((count for count, reached in peaks.items() if 0 < reached <= session.limit), default=None)
            if count is None:
                raise
        if count is None:
            least = min(reached for reached in peaks.values() if reached)
            raise MemoryLimitError(
                f"found no size within {mib(session.limit)}; that of {min(peaks) * multiple} has {mib(least)} ({policy.kind})",
                session.limit,
                least,
                0,
            )
        fitted = session.fit(training(count), policy)
        if count + 1 not in peaks:
            fitted = _noted(fitted, f"{len(peaks)} sizes were tried: {count * multiple} is the largest of them that fits")
        return Largest(count * multiple, fitted)


def _largest(peaks: dict[int, int], limit: int, peak: Callable[[int], int]) -> int | None:
    """The largest number whose peak is within a limit, by a line through those in ``peaks``, to which it adds."""
    while True:
        fitting = max((count for count, reached in peaks.items() if 0 < reached <= limit), default=0)
        above = min((count for count in peaks if count > fitting), default=None)
        if above == fitting + 1 or len(peaks) >= SIZES:
            return fitting or None
        known = sorted(count for count in peaks if peaks[count])
        one, other = ([0, *known] if len(known) < 2 else sorted(known, key=lambda count: abs(peaks[count] - limit))[:2])[:2]
        rise = (peaks[other] - peaks.get(one, 0)) / (other - one) if other != one else 0.0
        guess = int(one + (limit - peaks.get(one, 0)) / rise) if rise > 0 else 2 * fitting + 1
        # Between those that are known; at most four times what fits, since a line from one point is a rough guess.
        count = max(fitting + 1, min(guess, above - 1 if above else 4 * max(fitting, 1)))
        peaks[count] = peak(count)


class _Session:
    """What is asked for, checked, and what is asked."""

    def __init__(
        self,
        hbm: int | str,
        chip: str,
        previews: int,
        compiles: int,
        folder: str | Path | None,
        time_limit: float | None,
        compile_limit: float,
        own_names: bool,
        check: bool,
        on_progress: Callable[[str], None] | None,
        cancel: threading.Event | None,
    ):
        self.limit = size("a limit of {}", hbm, 1)
        self._previews = whole("{} previews", previews, least=1)
        self._compiles = whole("{} compiles", compiles, least=0)
        if time_limit is not None:
            number("a time limit of {} s", time_limit, least=0, or_least=False)
        self.target: Target = load_target(chip if chip.startswith("tpu-") else f"tpu-{chip}")
        xla_chip(self.target)
        versions()
        self._own_names, self._check = own_names, check
        self.say = on_progress or (lambda line: None)
        self.compiler = Previews(self.target, folder, compile_limit, Deadline(time_limit, cancel))

    def search(self, training: Training, previews: int) -> Search:
        """A search for a policy of what is compiled."""
        own, compiles = self._own_names, self._compiles
        return Search(training, self.compiler, self.limit, previews, compiles, self.say, own_names=own)

    def fit(self, training: Training, first: Policy | None = None) -> Fitted:
        """The policy that is taken, ``first`` tried before others."""
        search = self.search(training, self._previews)
        search.run(first)
        report = search.report()
        policy = report.chosen.policy
        fitted = Fitted(with_policy(training.function, policy), report, report.policy_text)
        if not self._check:
            return fitted
        try:
            note = self.compiler.within(lambda: check_gradients(training, policy))
        except TimeLimitError:
            note = "gradients were not compared: the time was over"
        return _noted(fitted, note)


def _noted(fitted: Fitted, note: str) -> Fitted:
    report = msgspec.structs.replace(fitted.report, notes=(*fitted.report.notes, note))
    return fitted._replace(report=report)
