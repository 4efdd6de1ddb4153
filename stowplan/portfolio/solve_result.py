"""What :func:`stowplan.solve` returns of a run."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache as cached
from importlib import metadata
from typing import Any

from stowplan.models.hint import Hint
from stowplan.notes import bounded
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run import Run
from stowplan.result import Provenance, Result, Status, StopReason
from stowplan.version import VERSION

_VERSIONED = ("ortools", "highspy", "numpy", "numba")
_VERSIONED_WITH_POLICY = (*_VERSIONED, "torch")


def result_of(run: Run, stop_reason: StopReason, *, chosen: Iterable[Candidate], baselines: Iterable[str], hint: Any) -> Result:
    """The result of a run that is over.

    Parameters
    ----------
    chosen
        The candidates it was given.
    baselines
        Names of the plans that the result is set beside, in this order; one that nobody made is left out.
    hint
        What :func:`stowplan.solve` was given.
    """
    known = run.state
    checkpoint, training = _checkpoint(run, chosen)
    baseline = known.baseline or known.kind.baseline
    status: Status
    if known.infeasible:
        status = "infeasible"
    elif known.objective is None:
        status = "no_plan"
    else:
        status = "optimal" if known.bound is not None and known.objective <= known.bound else "feasible"
    if known.options.deterministic and run.cut_short:
        known.warnings.append("a deterministic run was ended before its work was done: another run may differ")
    identity = known.kind.identity(known.problem)
    return Result(
        kind=known.kind.name,
        plan=known.plan,
        objective=known.objective,
        bound=known.bound,
        status=status,
        stop_reason=stop_reason,
        verified=known.objective is not None,
        baseline_name=baseline,
        baseline=known.sources.get(baseline),
        baselines={name: known.sources[name] for name in baselines if name in known.sources},
        history=tuple(known.history),
        candidates=tuple(run.reports),
        provenance=Provenance(
            candidate="" if known.best is None else known.best.source,
            seed=known.options.seed,
            deterministic=known.options.deterministic,
            versions=versions(with_policy=checkpoint is not None),
            program=identity["program"],
            target=identity["target"],
            cost_model=identity["cost_model"],
            problem_digest=identity["digest"],
            options={
                "time_limit": known.options.time_limit,
                "candidates": list(known.options.candidates),
                "workers": known.options.workers,
                "gap": known.options.gap,
            }
            | ({} if known.baseline is None else {"baseline": known.baseline})
            | ({} if known.options.memory_limit is None else {"memory_limit": known.options.memory_limit})
            | ({} if hint is None else {"hint": hint.source if isinstance(hint, Hint) else "plan"}),
            checkpoint=checkpoint,
            checkpoint_training=training,
            guides=(*known.guides,),
            family="" if known.best is None else known.families.get(known.best.source, "given"),
        ),
        seconds=round(known.deadline.elapsed, 3),
        unit=known.kind.unit,
        highlights=known.kind.highlights,
        # What every heuristic and model reached, not only the best.
        details=(known.why if known.infeasible else {})
        | known.kind.facts(known.problem, known.plan)
        | ({} if known.infeasible else known.kind.proven(known.problem, known.objective, known.bound))
        | {"sources": dict(known.sources)},
        warnings=(*bounded(known.kind.notes(known.problem)), *known.warnings),
    )


def _checkpoint(run: Run, chosen: Iterable[Candidate]) -> tuple[str | None, str]:
    """Hash of the policy that took part, and how it was trained: others may have gone on from its plans."""
    ran = {report.name for report in run.reports if report.outcome != "skipped"}
    took_part = (each for each in chosen if each.checkpoint and each.name in ran)
    return next(((each.checkpoint, each.training) for each in took_part), (None, ""))


def versions(*, with_policy: bool) -> dict[str, str]:
    """Versions that plans depend on, by package; with a policy, torch's too. What is not installed is left out."""
    return dict(_versions(_VERSIONED_WITH_POLICY if with_policy else _VERSIONED))


@cached
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version(), "stowplan": VERSION}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
