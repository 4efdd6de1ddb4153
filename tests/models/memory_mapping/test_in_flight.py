"""What an asynchronous operation reads and writes keeps its place in fast memory from its start to its end."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.hardware.costs import make_problem
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.cpsat import solve
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import InFlight, Problem
from stowplan.models.memory_mapping.verify import Reason, verify
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_problem, with_in_flight
from tests.models.memory_mapping.relaxations import relaxation_bound

V = "f32[1024]{0}"
#: a is sent from step 1 to step 4, while b and c are computed.
PERMUTE = f"""HloModule permute, is_scheduled=true, num_partitions=2

ENTRY main {{
  x = {V} parameter(0)
  a = {V} multiply(x, x)
  s = ({V}, {V}) collective-permute-start(a), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  b = {V} add(x, x)
  c = {V} multiply(b, b)
  d = {V} collective-permute-done(s)
  ROOT r = {V} add(d, c)
}}
"""


@pytest.fixture
def sent() -> Problem:
    with pytest.warns(UserWarning, match="exchanges data between devices"):
        program = program_from_module(parse_module(PERMUTE))
    return make_problem(program, load_target("teaching"), capacity=8192, stalls="allowed")


def plan_of(problem: Problem, residencies: list[Residency], copies: list[Copy], fast: set[tuple[str, str]]) -> Plan:
    """A plan whose fast uses are those of some (step, tensor)."""
    uses = [(step.name, problem.tensors[use.tensor].name) for step in problem.steps for use in step.uses]
    numbers = tuple(number for number, use in enumerate(uses) if use in fast)
    plan = Plan(problem=problem.digest, objective=0, residencies=tuple(residencies), copies=tuple(copies), fast_uses=numbers)
    return msgspec.structs.replace(plan, objective=verify(problem, plan).objective or 0)


def codes(problem: Problem, plan: Plan) -> set[Reason]:
    return {violation.code for violation in verify(problem, plan).violations} - {Reason.WRONG_OBJECTIVE}


def test_bytes_that_are_being_sent_are_not_taken(sent: Problem) -> None:
    number = {tensor.name: at for at, tensor in enumerate(sent.tensors)}
    a, b = number["a"], number["b"]
    assert [step.name for step in sent.steps] == ["a", "s", "b", "c", "d", "r"]
    assert {*sent.in_flight} == {InFlight(a, 1, 5), InFlight(number["s{1}"], 1, 5)}
    used = {("a", "a"), ("s", "a"), ("d", "a"), ("b", "b"), ("c", "b")}
    apart = plan_of(sent, [Residency(a, 0, 5, 0), Residency(b, 2, 4, 4096)], [], used)
    assert codes(sent, apart) == set()
    over = [Residency(a, 0, 5, 0), Residency(b, 2, 4, 0)]
    assert codes(sent, plan_of(sent, over, [], used)) == {Reason.OVERLAP}
    left = [Residency(a, 0, 2, 0), Residency(b, 2, 4, 0)]
    assert codes(sent, plan_of(sent, left, [Copy(a, "out", 1, 2)], used - {("d", "a")})) == {Reason.IN_FLIGHT}
    # Without the rule this is a plan: the copy in slow memory is valid where the operation ends.
    free = msgspec.structs.replace(sent, in_flight=())
    assert codes(free, plan_of(free, left, [Copy(a, "out", 1, 2)], used - {("d", "a")})) == set()


def test_a_result_is_not_moved_before_it_is_there(sent: Problem) -> None:
    result = next(at for at, tensor in enumerate(sent.tensors) if tensor.name == "s{1}")
    early = [Residency(result, 1, 3, 0)]
    assert codes(sent, plan_of(sent, early, [Copy(result, "out", 2, 3)], {("s", "s{1}")})) >= {Reason.IN_FLIGHT}
    later = [Residency(result, 3, 6, 0)]
    arrives = plan_of(sent, later, [Copy(result, "in", 3, 4)], {("d", "s{1}"), ("r", "s{1}")})
    assert codes(sent, arrives) >= {Reason.IN_FLIGHT}
    whole = plan_of(sent, [Residency(result, 1, 6, 0)], [], {("s", "s{1}"), ("d", "s{1}"), ("r", "s{1}")})
    assert codes(sent, whole) == set()


@pytest.mark.parametrize("seed", range(60))
def test_finds_what_brute_force_finds(seed: int) -> None:
    rng = random.Random(seed)
    evictions = rng.choice(["whole_steps", "between_steps"])
    problem = with_in_flight(random_problem(rng, steps=6, tensors=4, channels=1, evictions=evictions), rng)
    outcome, best = solve(problem, time_limit=60), optimum(problem)
    assert verify(problem, outcome.plan).ok
    assert outcome.plan.objective == outcome.bound == best
    assert relaxation_bound(problem) <= best


def test_what_no_program_has_is_refused(sent: Problem) -> None:
    problem = msgspec.structs.replace(sent, in_flight=())
    a = next(at for at, tensor in enumerate(sent.tensors) if tensor.name == "a")
    for held, message in [
        (InFlight(99, 0, 2), "found tensor 99, expected one that a uses"),
        (InFlight(a, 4, 4), r"found steps \[4, 4\), expected a range within 0 to 6"),
        (InFlight(a, 4, 7), r"found steps \[4, 7\), expected a range within 0 to 6"),
        (InFlight(a, 1, 3), f"found tensor {a}, expected one that b uses"),
    ]:
        with pytest.raises(InputError, match=message):
            msgspec.structs.replace(problem, in_flight=(held,))
    assert msgspec.structs.replace(problem, in_flight=(InFlight(a, 1, 5),)).digest != problem.digest


def test_a_problem_without_asynchronous_operations_is_what_it_was() -> None:
    problem = random_problem(random.Random(7))
    assert problem.digest == msgspec.structs.replace(problem, in_flight=()).digest
    rules = msgspec.structs.asdict(problem)
    assert rules.pop("in_flight") == ()
