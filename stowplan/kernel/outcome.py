"""Makes the result of a run: the plan, what is proven about it, how it was found, and warnings."""

from __future__ import annotations

from collections.abc import Iterable

from stowplan.kernel.call import Call
from stowplan.kernel.given import missing_baseline_warning
from stowplan.kernel.kind import Candidate
from stowplan.kernel.run import Run
from stowplan.kernel.state import RunState
from stowplan.log import bounded
from stowplan.models.hint import Hint
from stowplan.result import Provenance, Result, Status, StopReason
from stowplan.version import versions


def result_of(run: Run, call: Call, stop_reason: StopReason) -> Result:
    """Makes the result of a call whose run is over. It first adds to the run's state the warnings that can be given only at the
    end of a run."""
    state, kind, problem = run.state, call.kind, call.problem
    _warn(run, call)
    baseline = state.baseline or kind.baseline
    names = (baseline.name for baseline in kind.baselines)
    compared_with = dict.fromkeys((*call.starts, *names, *([] if call.baseline is None else [call.baseline])))
    # ``sources`` has the best objective of every source of plans.
    details = (
        (state.infeasibility_details if state.infeasible else {})
        | kind.facts(problem, state.plan, None if state.best is None else state.best.check)
        | ({} if state.infeasible else kind.proven(problem, state.objective, state.bound))
        | {"sources": dict(state.sources)}
    )
    return Result(
        kind=kind.name,
        plan=state.plan,
        objective=state.objective,
        bound=state.bound,
        status=_status(state),
        stop_reason=stop_reason,
        verified=state.objective is not None,
        baseline_name=baseline,
        baseline=state.sources.get(baseline),
        baselines={name: state.sources[name] for name in compared_with if name in state.sources},
        history=tuple(state.history),
        candidates=tuple(run.reports),
        provenance=_provenance(run, call),
        seconds=round(state.deadline.elapsed, 3),
        unit=kind.unit_for(problem),
        details=details,
        highlights={
            each.label or each.fact: each.write(details[each.fact])
            for each in kind.highlights
            if details.get(each.fact) is not None
        },
        # Notes of the front end about parts of the input that it does not model.
        warnings=(*bounded(getattr(problem, "notes", ())), *dict.fromkeys(state.warnings)),
        cut_short=run.is_truncated or state.cut_short,
    )


def _status(state: RunState) -> Status:
    """Status of a run that is over."""
    if state.infeasible:
        return "infeasible"
    if state.objective is None:
        return "no_plan"
    return "optimal" if state.bound is not None and state.objective <= state.bound else "feasible"


def _provenance(run: Run, call: Call) -> Provenance:
    """The provenance of the best plan: how it was found, with the options that are needed to find it again."""
    state, options = run.state, call.options
    identity = call.kind.identity(call.problem)
    checkpoint, training = _checkpoint(run, call.candidates)
    source = "" if state.best is None else state.best.source
    options_record = {
        "time_limit": options.time_limit,
        "candidates": list(options.candidates),
        "workers": options.workers,
        "gap": options.gap,
    }
    if options.deterministic:
        options_record |= {"work_limit": options.extent} | (run.reproducing_options or {})
    if state.baseline is not None:
        options_record["baseline"] = state.baseline
    if options.memory_limit is not None:
        options_record["memory_limit"] = options.memory_limit
    if call.hint is not None:
        options_record["hint"] = call.hint.source if isinstance(call.hint, Hint) else "plan"
    return Provenance(
        candidate=source,
        seed=options.seed,
        deterministic=options.deterministic,
        versions=versions(with_policy=checkpoint is not None),
        program=identity["program"],
        target=identity["target"],
        cost_model=identity["cost_model"],
        problem_digest=identity["digest"],
        options=options_record,
        checkpoint=checkpoint,
        checkpoint_training=training,
        guides=(*state.guides,),
        family=state.families.get(source, "given") if source else "",
    )


def _warn(run: Run, call: Call) -> None:
    """Adds warnings that can be given only once the run is over."""
    state = run.state
    name = state.baseline
    if name is not None and name not in state.sources and not state.infeasible and not call.warnings:
        state.warnings.append(missing_baseline_warning(name, run.reports))
    if run.is_truncated:
        reproduction = " and ".join(
            f"{name}={value}" for name, value in (run.reproducing_options or {}).items() if call.stability_pass is None
        )
        reproduction = f"; this plan is that of {reproduction}" if reproduction else ""
        state.warnings.append(f"a deterministic run was ended before its work was done: another run may differ{reproduction}")


def _checkpoint(run: Run, chosen: Iterable[Candidate]) -> tuple[str | None, str]:
    """Hash of the policy that took part in the run, and how the policy was trained; ``(None, "")`` if there was none.

    The policy is named even if another candidate found the best plan, because that candidate may have improved a plan of the
    policy.
    """
    ran = {report.name for report in run.reports if report.outcome != "skipped"}
    took_part = (candidate for candidate in chosen if candidate.checkpoint and candidate.name in ran)
    return next(((candidate.checkpoint, candidate.training) for candidate in took_part), (None, ""))
