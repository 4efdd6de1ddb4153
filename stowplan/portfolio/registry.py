"""The kinds of problem that can be solved. To add one, add its folder and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from stowplan import files
from stowplan.errors import InputError, UsageError

#: Module of each kind; it has a ``KIND``. Imported only when a problem of the kind turns up.
_MODULES = {
    "memory_mapping": "stowplan.portfolio.memory_mapping.kind",
    "packing": "stowplan.portfolio.packing.kind",
    "tier_placement": "stowplan.portfolio.tier_placement.kind",
    "bank_mapping": "stowplan.portfolio.bank_mapping.kind",
    "modulo_scheduling": "stowplan.portfolio.modulo_scheduling.kind",
}


@dataclass(frozen=True)
class Check:
    """What a kind's verifier says of a plan."""

    ok: bool
    objective: int | None
    """Recomputed from scratch."""
    violations: tuple[str, ...]
    """One line each."""


@dataclass(frozen=True)
class Candidate:
    """A way to find plans or bounds, run in a process of its own."""

    name: str
    family: str
    """``heuristic``, ``learned`` or ``exact``."""
    function: str
    """``module:function`` of ``(problem, context) -> None``."""
    share: float = 1.0
    """Part of the time limit it gets where candidates must run one after the other."""
    interpret: bool = False
    """Run with compiled functions interpreted."""
    proves_only: bool = False
    """Gives bounds and no plans, so that the plan does not depend on how far it comes."""
    by_name_only: bool = False
    """Runs where it is asked for by name, not with its family."""
    unavailable: str = ""
    """Why it cannot run here; empty where it can."""
    checkpoint: str | None = None
    """Hash of the policy file that it plays with, of a learned one."""

    def load(self) -> Callable[[Any, Any], None]:
        """The function itself."""
        module, _, name = self.function.partition(":")
        return cast(Callable[[Any, Any], None], getattr(importlib.import_module(module), name))


@dataclass(frozen=True)
class Kind:
    """A kind of problem: its five parts and its candidates."""

    name: str
    problem_type: type
    plan_type: type[Any]
    problem_format: str
    plan_format: str
    decode_problem: Callable[..., Any]
    """``(bytes, source=None) -> problem``."""
    decode_plan: Callable[..., Any]
    verify: Callable[[Any, Any], Check]
    """``(problem, plan)``, both of their types; :func:`check` takes anything for a plan."""
    finish: Callable[[Any, Any, int], Any]
    """``(problem, plan, objective) -> plan`` with the verified objective written into it."""
    initial: Callable[[Any], Mapping[str, Any]]
    """Plans that cost nothing to make, by name."""
    bound: Callable[[Any], int]
    """A bound that costs nothing."""
    candidates: Callable[[Any, Any], list[Candidate]]
    """``(problem, options)`` to all candidates there are, most useful first."""
    baseline: str
    """Name of the baseline that speedups are over."""
    facts: Callable[[Any, Any], dict[str, Any]]
    """``(problem, plan or None)`` to details for the result."""
    identity: Callable[[Any], dict[str, str]]
    """Program, target, cost model and digest of a problem."""
    unit: str = "ps"
    """Of objectives and bounds."""
    baseline_sources: tuple[str, ...] = field(default=())
    """Sources whose objectives the result lists as baselines."""
    asks_for_any: Callable[[Any], bool] = lambda problem: False
    """Whether any valid plan will do, however good others may be."""
    presenter: str = ""
    """``module:object`` of ``(kind) -> presenter`` (:mod:`stowplan.report.presenter`); empty for the generic one."""
    proven: Callable[[Any, int | None, int | None], dict[str, Any]] = lambda problem, objective, bound: {}
    """``(problem, objective, bound)`` to details that say in the kind's own terms what is proven."""
    notes: Callable[[Any], tuple[str, ...]] = lambda problem: ()
    """What the problem's front end could not take literally; results warn of it."""
    quick_plan: Callable[[Any, Any, Callable[[], bool]], tuple[str, Any] | None] | None = None
    """``(problem, options, should_stop)`` to the name and the plan of a heuristic that needs no compiled code and little time.

    It runs in this process, while the workers load what they need, so that no limit is too short for some plan. Stopped
    early it returns what it has, None where that is nothing.
    """


def identify(problem: Any) -> dict[str, str]:
    """The identity of a problem that says it all itself."""
    return {
        "program": problem.name,
        "target": problem.target,
        "cost_model": problem.cost_model,
        "digest": problem.digest,
    }


def check(kind: Kind, problem: Any, plan: Any) -> Check:
    """What the kind's verifier says of anything that is given as a plan; never raises."""
    if not isinstance(plan, kind.plan_type):
        return Check(False, None, (f"wrong_kind: found {describe_plan(plan)}, expected a plan of {kind.name}",))
    try:
        return kind.verify(problem, plan)
    except Exception as error:  # a plan that the verifier stumbles over must not cost the plans at hand
        return Check(False, None, (f"the verifier failed: {type(error).__name__}: {error}",))


def describe_plan(plan: Any) -> str:
    """What is given as a plan, for an error message: ``a plan of packing``, ``a str`` ..."""
    other = next((each.name for each in kinds() if isinstance(plan, each.plan_type)), None)
    return f"a {type(plan).__name__}" if other is None else f"a plan of {other}"


@cache
def kind(name: str) -> Kind:
    """Kind of this name; raises UsageError where there is none."""
    if name not in _MODULES:
        raise UsageError(f"found kind {name!r}, expected one of {', '.join(_MODULES)}")
    return cast(Kind, importlib.import_module(_MODULES[name]).KIND)


def kinds() -> list[Kind]:
    """All kinds."""
    return [kind(name) for name in _MODULES]


def kind_of(problem: object) -> Kind:
    """Kind of a problem object."""
    # Its own kind comes first, by its module's name: importing the others takes time.
    own = type(problem).__module__.split(".")
    for each in map(kind, sorted(_MODULES, key=lambda name: name not in own)):
        if isinstance(problem, each.problem_type):
            return each
    raise UsageError(f"found a {type(problem).__name__}, expected a problem: see stowplan.read")


def decode_problem(data: bytes, source: str | Path | None = None) -> Any:
    """Problem of any kind from a problem file's bytes, or None where they are not one of ours."""
    found = files.peek_format(data)
    if found is None:
        return None
    for each in kinds():
        if found == each.problem_format:
            return each.decode_problem(data, source)
    known = ", ".join(each.problem_format for each in kinds())
    raise InputError(f"found format {found!r}, expected one of {known}", source=source, place="format")
