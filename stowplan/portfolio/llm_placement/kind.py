"""The kind ``llm_placement``: how its plans are verified and described, and which candidates and baselines it has.

A plan places the layers of a language model on the host and the devices. It chooses which parts of a device's layers stay on
the host. It also chooses a *micro-batch*, the number of tokens of a prompt that are computed at once. The objective is the time
in picoseconds of a request, which computes a prompt and generates an answer. :class:`stowplan.kernel.kind.Kind` explains the
fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.llm_placement.plan import DECISIONS, Plan, used_bytes
from stowplan.models.llm_placement.problem import HOST, ROUNDED, Problem, floor, layer_bytes
from stowplan.models.llm_placement.verify import verify
from stowplan.portfolio.llm_placement.fit import fit_plan
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.units import PS
from stowplan.verification import Verification


def _on_host(problem: Problem) -> Plan | None:
    """The plan with all layers on the host and the first micro-batch; None if the layers do not fit."""
    from stowplan.models.llm_placement.plan import plan_of

    layers = len(problem.layers)
    plan = plan_of(problem, [HOST] * layers, [0] * layers, 0)
    return plan if verify(problem, plan).ok else None


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    return [
        PRESOLVER,
        in_caller(Candidate("enumeration", "heuristic", share=0.4), options),
        Candidate("cpsat", "exact"),
    ]


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.llm_placement import candidates

    return {"presolve": candidates.presolve, "enumeration": candidates.enumeration, "cpsat": candidates.cpsat}[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the model, and with a plan the bytes in each memory and the micro-batch in tokens."""
    facts: dict[str, Any] = {"layers": len(problem.layers), "devices": len(problem.devices)}
    facts["bytes"] = problem.host_bytes + sum(map(layer_bytes, problem.layers))
    if plan is not None:
        facts["bytes_by_memory"] = bytes_by_memory(problem, plan)
        facts["micro_batch"] = problem.micro_batches[plan.micro_batch].size
    return facts


def bytes_by_memory(problem: Problem, plan: Plan) -> dict[str, int]:
    """Bytes of weights, caches and buffers in the host's memory and in that of each device with layers, by their names.

    The plan must be valid.
    """
    used = used_bytes(problem, plan.memories, plan.spilled)
    used[HOST] += problem.host_bytes
    return {
        device.name: used[memory] + device.compute_bytes[plan.micro_batch]
        for memory, device in enumerate(problem.memories)
        if memory == HOST or memory in plan.memories
    }


def _identity(problem: Problem) -> dict[str, str]:
    names = ", ".join(device.name for device in problem.memories)
    return identify(problem, "LLM placement", problem.target or names)


def _prover() -> Prover:
    from stowplan.certificates.maker.models import models

    return models


KIND = Kind(
    name="llm_placement",
    problem=Problem,
    plan=Plan,
    verify=verify,
    bound=floor,
    granularity=lambda problem: ROUNDED,
    candidates=_candidates,
    function=_function,
    baselines=(Baseline(name="fit", plan=fit_plan, is_known=True), Baseline(name="host", plan=_on_host, is_known=True)),
    assumptions=("devices.capacity", "devices.margin=0", "host.capacity"),
    facts=_facts,
    counts=("layers", "devices"),
    identity=_identity,
    unit=PS,
    decisions=DECISIONS,
    certificate=_prover,
)
