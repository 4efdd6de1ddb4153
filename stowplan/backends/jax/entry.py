"""The public functions: fit a training step into a number of bytes, or find the largest size that fits.

A *size* is a number that the shapes of the step depend on, such as the number of examples in a batch. A policy of
``jax.checkpoint`` says which values of the forward pass are saved for the backward pass; a *plan* is a policy whose values
stowplan has chosen. The *peak* of a step with a policy is the largest number of bytes that the compiled program needs at once.
A *preview* is a compilation that ends once XLA has assigned memory, and reports the peak.
"""

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
from stowplan.backends.jax.search import SMALL_SHARES, PolicySearch
from stowplan.backends.jax.training import Training
from stowplan.backends.xla.compiler import COMPILE_LIMIT
from stowplan.backends.xla.workload import versions
from stowplan.deadline import Deadline
from stowplan.errors import TimeLimitError
from stowplan.hardware.targets import Target, load_target, xla_chip

#: Default numbers of previews and of full compilations. They are enough for all of jax's own policies and one plan.
PREVIEWS, COMPILES = 6, 6

#: Maximum number of sizes whose peaks are known when a search for the largest one ends. Each takes one preview.
SIZES = 12


class Fitted(NamedTuple):
    """The result of :func:`fit`."""

    function: Callable[..., Any]
    """The function with the best policy, not jitted."""
    report: FitReport
    """All policies that were previewed, with their peaks and cycles."""
    policy: str
    """Lines of Python that define the policy, to paste into a program."""


class Largest(NamedTuple):
    """The result of :func:`fit_largest`."""

    size: int
    """The largest size that fits."""
    fitted: Fitted
    """The result of :func:`fit` for this size."""


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
    """Finds a policy of ``jax.checkpoint`` with which a training step stays within a number of bytes of a TPU's memory.

    No TPU is needed, because XLA compiles for it ahead of time.

    Parameters
    ----------
    loss_or_step
        A loss, which returns one float and is compiled with its gradient; or a training step, which calls its loss through
        :class:`~stowplan.backends.jax.marked`. The function must not be jitted.
    arguments
        Its arguments: trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings matter.
    hbm
        The most bytes that the program may need on a device, including arguments and results, or text such as ``"14 GiB"``.
    chip
        Name of a chip that XLA compiles for, such as ``"v5e"``, or of its target, such as ``"tpu-v5e"``.
    argnums
        For a loss: positions of the arguments by which it is differentiated. Ignored for a step that calls marked losses.
    donated
        Positions of arguments whose memory the results may reuse.
    previews
        The largest number of previews, 1 or more, including stored ones.
    compiles
        The largest number of full compilations, whose cycles decide between policies within the limit. With 0, the predicted
        time of recomputation and of transfers to the host decides.
    folder
        Folder in which results are stored and looked up; None for a temporary one.
    time_limit
        Seconds for everything. When they are over, a preview or compilation that is running is stopped, and the best policy
        within the limit is returned; ``report.stop_reason`` says so. None for no limit.
    compile_limit
        Seconds for one preview or compilation.
    own_names
        Whether plans only save values that the program itself names by ``checkpoint_name``, as in MaxText.
    check
        Whether gradients with the policy are compared with those without it, on this machine's CPU and at full size. If they
        cannot be computed, a note in the report says why.
    on_progress
        Is called with a line before and after each preview and compilation: the time, the result of the preview or compilation,
        and the best policy so far.
    cancel
        Once this event is set, the search ends as at the time limit. Ctrl-C ends it as well if a policy is already within the
        limit; otherwise KeyboardInterrupt is raised.

    Returns
    -------
    Fitted
        The function with the best policy that was found, the report, and the policy as Python code.

    Raises
    ------
    MemoryLimitError
        No policy that was tried is within the limit; the message says the lowest peak.
    UsageError
        An argument is not valid, XLA does not compile for the chip, the function has no backward pass, or the arguments alone
        are above the limit.
    InputError
        There is no chip of this name, or a result cannot be stored in ``folder``.
    GradientError
        Gradients differ by more than the tolerance (with ``check``).
    CompileError
        The function cannot be traced. It is also raised if XLA refuses the program, or if the compiling process dies, before a
        policy was within the limit.
    MissingDependencyError
        Jax, libtpu or cloudpickle is not installed.
    TimeLimitError
        The time limit, or ``compile_limit`` in one preview, was reached before a policy was within the memory limit.
    """
    session = _Session(hbm, chip, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel)
    with session.compiler:
        traced_arguments = (loss_or_step, arguments, argnums, donated, session.target, session.limit)
        return session.fit(session.compiler.within(lambda: Training(*traced_arguments)))


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
    """Finds the largest size, such as that of a batch, with which a training step fits, and a policy for it.

    First the policy with the lowest peak is found at the size ``start``. A line through the peaks of this policy that are known
    so far predicts which size still fits. That size is previewed, and the prediction is repeated until a size fits and the next
    one does not. The step of the largest size that fits is then fitted as by :func:`fit`.

    Parameters
    ----------
    make
        A function that takes a size and returns the training step or the loss, its arguments, and optionally the positions of
        donated arguments, as for :func:`fit`.
    start, multiple
        The first size to try, and a number of which all sizes are multiples; both are 1 or more. If ``start`` is no multiple,
        it is rounded down, but not below ``multiple``.
    hbm, chip, argnums, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel
        See :func:`fit`. Previews of sizes do not count in ``previews``.

    Raises
    ------
    MemoryLimitError
        None of the sizes that were tried fits.
    StowplanError
        All errors of :func:`fit`, for the same reasons, except in two cases. A size whose arguments alone are above the limit
        is no error; it does not fit. If the time limit is reached after a size has fitted, the largest size that has fitted is
        used.
    """
    whole("a start of {}", start, least=1)
    whole("multiples of {}", multiple, least=1)
    session = _Session(hbm, chip, previews, compiles, folder, time_limit, compile_limit, own_names, check, on_progress, cancel)

    def traced(count: int) -> Training:
        function, arguments, *places = make(count * multiple)
        donated: Sequence[int] = places[0] if places else ()
        # There is no limit here: a size whose arguments alone are above the limit does not fit, but is no error.
        return Training(function, arguments, argnums, donated, session.target, 1 << 62)

    @functools.cache
    def training(count: int) -> Training:
        return session.compiler.within(lambda: traced(count))

    with session.compiler:
        first = max(1, start // multiple)
        small = session.search(training(first), 1 + len(SMALL_SHARES))
        policy = small.least()

        def peak(count: int) -> int:
            reached = session.search(training(count), 1).peak(policy)
            session.say(f"size {count * multiple}: {mib(reached) if reached else 'refused'} of {mib(session.limit)}")
            return reached

        peaks = {first: small.peak(policy)}
        try:
            count = _largest(peaks, session.limit, peak)
        except TimeLimitError:
            # When time is over, the largest size that has fitted so far is used.
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
            fitted = _with_note(fitted, f"{len(peaks)} sizes were tried: {count * multiple} is the largest of them that fits")
        return Largest(count * multiple, fitted)


def _largest(peaks: dict[int, int], limit: int, peak: Callable[[int], int]) -> int | None:
    """Finds the largest number whose peak is within a limit.

    The size of a number is the number times the ``multiple`` of :func:`fit_largest`.

    Parameters
    ----------
    peaks
        Known peaks in bytes by number, 0 for a number that the compiler refused; peaks that are measured are added.
    limit
        Limit in bytes.
    peak
        Measures the peak of a number.

    Returns
    -------
    int or None
        The largest number whose peak is known to be within the limit; None if there is none. The search ends when the peak of
        the next number is known to be above the limit, or when :data:`SIZES` peaks are known.
    """
    while True:
        fitting = max((count for count, reached in peaks.items() if 0 < reached <= limit), default=0)
        above = min((count for count in peaks if count > fitting), default=None)
        if above == fitting + 1 or len(peaks) >= SIZES:
            return fitting or None
        with_peaks = sorted(count for count in peaks if peaks[count])
        nearest, second = (
            [0, *with_peaks] if len(with_peaks) < 2 else sorted(with_peaks, key=lambda count: abs(peaks[count] - limit))[:2]
        )[:2]
        rise = (peaks[second] - peaks.get(nearest, 0)) / (second - nearest) if second != nearest else 0.0
        guess = int(nearest + (limit - peaks.get(nearest, 0)) / rise) if rise > 0 else 2 * fitting + 1
        # The next number is between the largest that fits and the smallest known number above it. If there is none above, it is
        # at most four times the largest that fits, because the prediction by a line is rough.
        count = max(fitting + 1, min(guess, above - 1 if above else 4 * max(fitting, 1)))
        peaks[count] = peak(count)


class _Session:
    """The checked arguments of a call, with the compiler.

    The constructor raises UsageError, InputError or MissingDependencyError, as :func:`fit` describes.
    """

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
        """Is called with each line of progress."""
        self.compiler = Previews(self.target, folder, compile_limit, Deadline(time_limit, cancel))

    def search(self, training: Training, previews: int) -> PolicySearch:
        """Returns a search for a policy of a training step that makes at most this number of previews."""
        own, compiles = self._own_names, self._compiles
        return PolicySearch(training, self.compiler, self.limit, previews, compiles, self.say, own_names=own)

    def fit(self, training: Training, first: Policy | None = None) -> Fitted:
        """Search for a policy, and check its gradients if that was requested; ``first`` is previewed before all others."""
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
        return _with_note(fitted, note)


def _with_note(fitted: Fitted, note: str) -> Fitted:
    """Returns the result with one more note in its report."""
    report = msgspec.structs.replace(fitted.report, notes=(*fitted.report.notes, note))
    return fitted._replace(report=report)
