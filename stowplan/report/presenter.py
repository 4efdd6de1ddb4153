"""Presenters, which show the plans of a kind as text, as a picture, and in the report. They are imported only when they are
used.

The presenter of a kind is made by ``PRESENTER`` in ``report/<kind>.py``, or by ``Kind.presenter``. A kind without either gets
:class:`Presenter`, which shows the parts that the plans of all kinds have as text, and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stowplan import kinds
from stowplan.document import Document
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.kernel.kind import Kind, kind_of
from stowplan.report.figures import check_format, save_picture
from stowplan.report.page import Details, Overview, Section
from stowplan.report.scene import Picture
from stowplan.report.text import format_value
from stowplan.report.trace import Trace
from stowplan.result import Result

#: A plan with its name.
Labelled = tuple[str, Any]


class Presenter:
    """The presenter of a kind, with the methods that commands and the report use. This base class shows the parts that the
    plans of all kinds have.

    The problems and plans in the arguments of its methods are of that kind. ``kind`` is None for objects of no known kind.
    """

    def __init__(self, kind: Kind[Any, Any] | None = None):
        self._kind = kind

    def check_drawable(self, problem: Any) -> None:
        """Raises :class:`~stowplan.errors.UsageError` if plans for this problem cannot be drawn; called before solving."""
        raise self._not_drawn()

    def check_options(self, *, plans: int, seconds: bool) -> None:
        """Raises UsageError if this number of ``plans`` cannot be shown side by side, or if ``seconds`` is True and the time
        axis cannot be in seconds. This base class refuses only seconds."""
        if seconds:
            raise UsageError(f"--set seconds: plans of the kind {self._words()} have no picture over time")

    def check_fits(self, problem: Any, plan: object) -> None:
        """Raises an error if a plan cannot be shown for this problem: InputError, or VerificationError if only valid plans are
        shown."""
        expected = None if self._kind is None else self._kind.plan_format
        plan_format = getattr(plan, "format", None)
        if expected is not None and plan_format != expected:
            raise InputError(f"found a plan of another kind ({plan_format or type(plan).__name__}), expected {expected}")
        if getattr(plan, "problem", problem.digest) != problem.digest:
            raise InputError("the plan is for another problem")

    def check_configurable(self, option: str) -> None:
        """Raises UsageError, which names the option, if plans of this kind do not configure a machine."""
        raise self._not_configured(option)

    def configuration(self, problem: Any, plan: Any) -> Document:
        """The configuration of the machine for a valid plan, such as the tables of a CGRA's tiles. Raises UsageError if plans
        of this kind configure none."""
        raise self._not_configured("--emit config")

    def check_traceable(self, option: str) -> None:
        """Raises UsageError, which names the option, if plans of this kind have no trace."""
        if type(self).trace is Presenter.trace:
            raise self._not_traced(option)

    def trace(self, problem: Any, plan: Any) -> Trace:
        """A valid plan as a trace for viewers of timelines: memory in use, residencies, operators and copies. Raises UsageError
        if plans of this kind have no trace."""
        raise self._not_traced("--emit perfetto")

    def simulate(self, problem: Any, plan: Any, iterations: int) -> str:
        """Simulates the configuration of a valid plan and returns a line about the outcome.

        Raises
        ------
        VerificationError
            The results differ from the expected ones.
        UsageError
            Plans of this kind configure no machine.
        """
        raise self._not_configured("--simulate")

    def references(self, problem: Any) -> list[Labelled]:
        """Plans to compare with if none is named: the baselines that cost nothing to make."""
        return [] if self._kind is None else list(self._kind.initial(problem).items())

    def summarize(self, problem: Any, plan: Any, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """A plan as text: its objective, the rules that it breaks, the objectives of other plans, the kind's facts, and the
        plan's fields.

        Parameters
        ----------
        others
            Named plans to compare with.
        everything
            Whether to list all entries of long lists; otherwise only their first entries are listed.

        Raises
        ------
        InputError, VerificationError
            Subclasses raise them for a plan that cannot be shown, as :meth:`check_fits` does.
        """
        if self._kind is None:
            return str(plan)
        check, unit = self._kind.verify(problem, plan), self._kind.unit_for(problem)
        ids = self._kind.identity(problem)
        lines = [f"{ids['program'] or self._words()} on {ids['target']} ({ids['cost_model']})"]
        lines.append(f"  objective  {format_value(check.objective, unit)}")
        lines += [f"  not valid  {violation}" for violation in (check.lines if everything else check.lines[:10])]
        for name, other in others:
            value = self._kind.verify(problem, other).objective
            lines.append(f"  {name:<9}  {format_value(value, unit)}")
        facts = self._kind.facts(problem, plan, check)
        width = max(map(len, facts), default=0)
        lines += [f"  {name:<{width}}  {_brief(value, everything)}" for name, value in facts.items()]
        for name in getattr(plan, "__struct_fields__", ()):
            if name not in ("problem", "objective", "name", "target", "format", "version"):
                lines.append(f"  plan.{name}: {_brief(getattr(plan, name), everything)}")
        return "\n".join(lines)

    def picture(self, problem: Any, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """A picture of named plans, of which the first is the main one. Equal plans are drawn once. Raises UsageError if plans
        of this kind are not drawn, or if there is no plan, and the errors of :meth:`check_fits`."""
        raise self._not_drawn()

    def overview(self, problem: Any, result: Result) -> Overview:
        """The key numbers of the kind for the top of the report."""
        return Overview()

    def report_sections(
        self, problem: Any, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The kind's sections of the report, about the plan of ``result`` and ``others``. Boxes with descriptions are added to
        ``details``. Raises the errors of :meth:`check_fits` for a plan that cannot be shown."""
        return []

    def _not_drawn(self) -> UsageError:
        return UsageError(f"--png: plans of the kind {self._words()} are not drawn; leave it out")

    def _not_traced(self, option: str) -> UsageError:
        return UsageError(f"{option}: plans of the kind {self._words()} do not say when anything happens, so there is no trace")

    def _not_configured(self, option: str) -> UsageError:
        return UsageError(f"{option}: plans of the kind {self._words()} configure no machine")

    def _words(self) -> str:
        return "unknown" if self._kind is None else self._kind.name.replace("_", " ")


class DrawingPresenter(Presenter):
    """A presenter that draws pictures."""

    #: Maximum number of plans side by side in a picture; None if there is no limit.
    max_plans: int | None = None
    #: Whether the time axis can be in seconds as well as in steps.
    has_seconds = False
    #: Words for error messages: the name of a plan, and the name of the thing that a plan is made for.
    plan_words, problem_words = "a plan of this kind", "problem"

    def check_drawable(self, problem: Any) -> None:
        """Accepts all problems, because this presenter draws plans for all of them."""

    def check_fits(self, problem: Any, plan: Any) -> None:
        """Raises InputError for plans of another kind or problem, and for plans that :meth:`check_parts` refuses. Other invalid
        plans are accepted, because pictures help to see what is wrong."""
        if self._kind is not None and not isinstance(plan, self._kind.plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected {self.plan_words}")
        if plan.problem != problem.digest:
            raise InputError(f"the plan is for another problem: expected the same {self.problem_words}")
        self.check_parts(problem, plan)

    def check_parts(self, problem: Any, plan: Any) -> None:
        """Raises InputError if a plan of this kind, for this problem, lacks a part or refers to one that does not exist. This
        base class accepts all plans."""

    def check_options(self, *, plans: int, seconds: bool) -> None:
        """Raises UsageError if the picture has no space for this number of ``plans``, or if ``seconds`` is True and the time
        axis cannot be in seconds."""
        if self.max_plans is not None and plans > self.max_plans:
            raise UsageError(f"--compare: a plan of the kind {self._words()} is drawn alone")
        if seconds and not self.has_seconds:
            super().check_options(plans=plans, seconds=seconds)

    def picture(self, problem: Any, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """The picture of the plans that differ, as :meth:`drawn` makes it; raises the errors of :meth:`distinct`."""
        return self.drawn(problem, self.distinct(problem, plans), seconds=seconds)

    def drawn(self, problem: Any, plans: Sequence[Labelled], *, seconds: bool) -> Picture:
        """A picture of plans that fit the problem and all differ."""
        raise NotImplementedError

    def report_sections(
        self, problem: Any, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The sections about the plan of a result and other plans, as :meth:`sections` makes them; none without a plan. Raises
        the errors of :meth:`check_fits`."""
        if result.plan is None:
            return []
        plans = self.distinct(problem, [(result.provenance.candidate, result.plan), *others])
        return self.sections(problem, result, plans, details)

    def sections(self, problem: Any, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """Sections about the plan of a result, which is the first of ``plans``; all plans differ."""
        raise NotImplementedError

    def are_alike(self, problem: Any, first: Any, second: Any) -> bool:
        """Whether two plans make the same decisions, whatever their names."""
        return first == second or not any(part.changes for part in kind_of(problem).diff(problem, first, second))

    def distinct(self, problem: Any, plans: Sequence[Labelled]) -> list[Labelled]:
        """Plans that differ, as many as the picture has space for; see :func:`merge_equal`. Raises UsageError if there is no
        plan, and an error if a plan cannot be shown (:meth:`check_fits`)."""
        if not plans:
            raise UsageError("found 0 plans, expected at least one")
        for _, plan in plans:
            self.check_fits(problem, plan)
        if len(plans) == 1 or self.max_plans == 1:
            return list(plans[:1])
        return merge_equal(plans, partial(self.are_alike, problem))[: self.max_plans]


def presenter_of(kind: Kind[Any, Any]) -> Presenter:
    """The presenter of a kind; :class:`Presenter` if the kind has none of its own."""
    module, factory = f"{__package__}.{kind.name}", kind.presenter or Presenter
    if kind.presenter is None and find_spec(module) is not None:
        factory = kinds.load(f"{module}:PRESENTER")
    instance: Presenter = factory(kind)
    return instance


def presenter_for(problem: object) -> Presenter:
    """The presenter of a problem's kind; the base class for objects that are not problems of a known kind."""
    try:
        return presenter_of(kind_of(problem))
    except StowplanError:
        return Presenter()


def check_picture(problem: object, path: str | Path | None) -> None:
    """Raises an error, before solving, if a picture of plans for this problem cannot be written.

    Raises
    ------
    UsageError
        The suffix is not .png, .svg or .pdf, or plans of this kind are not drawn.
    MissingDependencyError
        The format is PNG or PDF, and matplotlib is not installed.
    """
    if path is not None:
        presenter_for(problem).check_drawable(problem)
        check_format(path)


def draw(problem: object, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
    """Writes a picture of named plans of any kind, of which the first is the main one. Equal plans give equal bytes.

    Raises
    ------
    UsageError, MissingDependencyError
        As :func:`check_picture` raises them; UsageError also if there is no plan.
    InputError
        A plan is of another kind or for another problem, or the file cannot be written.
    VerificationError
        A plan is not valid, and only valid plans of this kind are shown.
    """
    check_format(path)
    save_picture(presenter_for(problem).picture(problem, plans, seconds=seconds), path)


def merge_equal(plans: Sequence[Labelled], same: Callable[[Any, Any], bool]) -> list[Labelled]:
    """Removes repeated plans, that is, those for which ``same`` is true, and joins their names, as in ``milp = compiler``."""
    merged: list[tuple[list[str], Any]] = []
    for label, plan in plans:
        names = next((names for names, other in merged if same(other, plan)), None)
        if names is None:
            merged.append(([label], plan))
        elif label not in names:
            names.append(label)
    return [(" = ".join(names), plan) for names, plan in merged]


def _brief(value: object, everything: bool, most: int = 12) -> str:
    """A value in one line, with at most ``most`` entries of a list unless ``everything`` is set."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_brief(entry, everything)}" for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        shown = value if everything else value[:most]
        rest = f", … and {len(value) - len(shown):,} more" if len(shown) < len(value) else ""
        return f"{len(value):,}: " + ", ".join(_brief(entry, everything) for entry in shown) + rest if value else "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if text.isprintable() else ascii(text)
