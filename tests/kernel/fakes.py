"""A small problem with a ladder of plans, and candidates for it that behave, and that misbehave in every way known.

Workers import the candidates from here.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec

from stowplan import kinds
from stowplan.kernel.kind import Baseline, Candidate, Kind
from stowplan.kernel.workers.messages import WorkerContext
from stowplan.models.memory_mapping.hint import of_plan
from stowplan.models.memory_mapping.plan import Plan, Residency
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.portfolio.memory_mapping.kind import KIND
from tests.patience import FOREVER

#: Four tensors, each read once, of which three fit; a use saves 9 ps of 10.
ALL_SLOW, OPTIMUM, FLOOR = 140, 113, 104


def ladder_problem() -> Problem:
    return Problem(
        name="ladder",
        target="none",
        cost_model="none",
        capacity=3,
        max_preloads=4,
        steps=(
            Step("wait", "wait", 1, (), (Piece(100, (), ()),)),
            *(Step(f"read {number}", "read", 1, (Use(number, False, 1),), (Piece(0, (10,), (1,)),)) for number in range(4)),
        ),
        tensors=tuple(Tensor(f"t{number}", 1, 5, 5, is_input=True) for number in range(4)),
    )


def ladder_plan(problem: Problem, rungs: int, *, first: int = 0) -> Plan:
    """Tensors ``first`` to ``first + rungs - 1`` preloaded; more than three do not fit."""
    tensors = range(first, first + rungs)
    return Plan(
        problem=problem.digest,
        objective=ALL_SLOW - 9 * rungs,
        residencies=tuple(Residency(tensor, 0, 5, place, preloaded=True) for place, tensor in enumerate(tensors)),
        fast_uses=tuple(tensors),
    )


#: What a fake is beside its name and share.
FLAGS: dict[str, dict[str, Any]] = {"": {}, "proves_only": {"proves_only": True}, "reserve": {"turn": "reserve"}}


def fake_kind(*names: str, **changes: Any) -> Kind[Any, Any]:
    """Memory mapping with the candidates of these names, as ``name``, ``name/share``, ``name:proves_only`` or
    ``name:reserve``.

    There is no baseline to wait for, and no first bounds.
    """
    # For workers, which know a kind by its place.
    kinds.register(KIND.name, f"{__name__}:FAKES")
    candidates = []
    for name in names:
        named, _, flag = name.partition(":")
        function, _, share = named.partition("/")
        candidates.append(Candidate(function, "heuristic", share=float(share or 1.0), **FLAGS[flag]))
    own = {
        "candidates": lambda problem, options: candidates,
        "baselines": tuple(replace(baseline, is_awaited=lambda problem: False) for baseline in KIND.baselines),
        "first_bounds": lambda problem: (),
    }
    return replace(FAKES, **{**own, **changes})


def function_of(name: str) -> Any:
    """The fake of a name; else the kind's own candidate."""
    return globals().get(name) or KIND.function(name)


#: Of a kind without plans that cost nothing.
NO_PLANS = {"baselines": (Baseline(name="greedy"),)}

#: Of a kind that waits for its baseline.
WAITS_FOR_GREEDY = {"baselines": KIND.baselines}

FAKES = replace(KIND, function=function_of)


# ------------------------------------------------------------------------------------------------- those that behave


def improves(problem: Problem, context: WorkerContext) -> None:
    for rungs in (1, 2):
        context.plan(ladder_plan(problem, rungs), "improves")


def solves(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 3), "solves")


def proves(problem: Problem, context: WorkerContext) -> None:
    context.bound(FLOOR + 3, "proves")
    context.bound(OPTIMUM, "proves")


def solves_and_proves(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 3, first=1), "solves_and_proves")
    context.bound(OPTIMUM, "solves_and_proves")


def proves_infeasible(problem: Problem, context: WorkerContext) -> None:
    context.proven_infeasible("proves_infeasible")


def obeys(problem: Problem, context: WorkerContext) -> None:
    """Works until told to stop, and has its best plan at the very end."""
    while not context.closed():
        time.sleep(0.01)
    context.plan(ladder_plan(problem, 2), "obeys")


def brings_the_baseline(problem: Problem, context: WorkerContext) -> None:
    time.sleep(0.5)
    context.plan(ladder_plan(problem, 1), "greedy")
    time.sleep(FOREVER)


def makes_the_baseline(problem: Problem, context: WorkerContext) -> None:
    """Three tensors that are not those of ``solves``, when others are done."""
    time.sleep(0.4)
    context.plan(ladder_plan(problem, 3, first=1), "greedy")


def makes_no_baseline(problem: Problem, context: WorkerContext) -> None:
    context.note("nothing fits")


def does_nothing(problem: Problem, context: WorkerContext) -> None:
    pass


def listens(problem: Problem, context: WorkerContext) -> None:
    """Ends the run when it hears of a plan and a bound of others, and says which."""
    while not context.closed():
        plan, bound = context.incumbent()
        if plan is not None and plan.objective == OPTIMUM and bound == OPTIMUM - 1:
            context.note(f"heard {plan.objective} and {bound}")
            context.bound(OPTIMUM, "listens")
            return
        time.sleep(0.01)


def speaks(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 3), "speaks")
    context.bound(OPTIMUM - 1, "speaks")
    while not context.closed():
        time.sleep(0.01)


def shows(problem: Problem, context: WorkerContext) -> None:
    """Two bounds with evidence for each; the second is the best of all."""
    for bound in (FLOOR + 1, OPTIMUM - 1):
        context.bound(bound, "shows")
        context.evidence(f"shows {bound}".encode())


def shows_less(problem: Problem, context: WorkerContext) -> None:
    """Evidence for smaller bounds, after that of the largest."""
    while context.incumbent()[1] != OPTIMUM - 1:
        time.sleep(0.01)
    context.evidence(b"shows_less nothing")
    for bound in (FLOOR + 2, FLOOR + 3, FLOOR + 4):
        context.bound(bound, "shows_less")
        context.evidence(f"shows_less {bound}".encode())


def hints(problem: Problem, context: WorkerContext) -> None:
    context.hint(of_plan(problem, ladder_plan(problem, 3), "hints"))
    while not context.closed():
        time.sleep(0.01)


def hints_nonsense(problem: Problem, context: WorkerContext) -> None:
    context.hint(msgspec.structs.replace(of_plan(problem, ladder_plan(problem, 3)), problem="other"))
    context.plan(ladder_plan(problem, 3), "hints_nonsense")


def takes_a_hint(problem: Problem, context: WorkerContext) -> None:
    """Ends the run with the plan of the first hint that it gets."""
    while not context.closed():
        if context.hints():
            hint = context.hints()[0]
            context.note(f"hinted by {hint.source}")
            context.follows("guide.npz sha256:1")
            context.plan(ladder_plan(problem, int(sum(hint.values["fast"]))), "takes_a_hint")
            context.bound(OPTIMUM, "takes_a_hint")
            return
        time.sleep(0.01)


def tells_start(problem: Problem, context: WorkerContext) -> None:
    context.note(f"starts from {context.start_plan.objective}, incumbent {context.incumbent()[0].objective}")


# Two plans of one objective; which comes first depends on the load, and here on who sleeps.


def equal_late(problem: Problem, context: WorkerContext) -> None:
    time.sleep(0.5)
    context.plan(ladder_plan(problem, 3, first=0), "equal_late")


def equal_early(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 3, first=1), "equal_early")


def goes_by_work(problem: Problem, context: WorkerContext) -> None:
    """With more work than that of a first stage a better plan, and no end."""
    is_first = context.options.extent < 0.1
    context.plan(ladder_plan(problem, 1 if is_first else 2), "goes_by_work")
    time.sleep(0 if is_first else FOREVER)


# ---------------------------------------------------------------------------------------------- those that do not stop


def says_where(problem: Problem, context: WorkerContext) -> None:
    """Returns at once, with a plan."""
    _say_where(context)
    context.plan(ladder_plan(problem, 2), "says_where")


def works_until_told(problem: Problem, context: WorkerContext) -> None:
    """Has all there is to find, and goes on until it is told to stop."""
    _say_where(context)
    context.plan(ladder_plan(problem, 3), "works_until_told")
    context.bound(OPTIMUM, "works_until_told")
    while not context.closed():
        time.sleep(0.01)


def works_in_vain(problem: Problem, context: WorkerContext) -> None:
    """Returns when its time is up, with a plan."""
    _say_where(context)
    context.plan(ladder_plan(problem, 1), "works_in_vain")
    while not context.closed():
        time.sleep(0.01)


def takes_a_while(problem: Problem, context: WorkerContext) -> None:
    """A second for all there is to find."""
    _say_where(context)
    time.sleep(1.0)
    context.plan(ladder_plan(problem, 3), "takes_a_while")
    context.bound(OPTIMUM, "takes_a_while")


def never_stops(problem: Problem, context: WorkerContext) -> None:
    """Has all there is to find, and goes on."""
    _say_where(context)
    context.plan(ladder_plan(problem, 3), "never_stops")
    context.bound(OPTIMUM, "never_stops")
    time.sleep(FOREVER)


def leaves_a_thread(problem: Problem, context: WorkerContext) -> None:
    threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True).start()
    says_where(problem, context)


def leaves_a_child(problem: Problem, context: WorkerContext) -> None:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    says_where(problem, context)


def leaves_the_folder(problem: Problem, context: WorkerContext) -> None:
    os.chdir("/")
    says_where(problem, context)


def leaves_a_variable(problem: Problem, context: WorkerContext) -> None:
    os.environ["STOWPLAN_INTERPRET"] = "1"
    says_where(problem, context)


def _say_where(context: WorkerContext) -> None:
    """Let a test find this process, and, where the test has no other way, a file."""
    context.note(f"pid {os.getpid()}")
    if "LADDER_PIDS" in os.environ:
        with open(os.environ["LADDER_PIDS"], "a") as stream:
            stream.write(f"{os.getpid()}\n")


def waits(problem: Problem, context: WorkerContext) -> None:
    time.sleep(FOREVER)


def sleeps(problem: Problem, context: WorkerContext) -> None:
    _say_where(context)
    context.plan(ladder_plan(problem, 1), "sleeps")
    time.sleep(FOREVER)


def holds_the_lock(problem: Problem, context: WorkerContext) -> None:
    """Sleeps in C without letting go of the interpreter, as a long call of compiled code does."""
    _say_where(context)
    context.plan(ladder_plan(problem, 1), "holds_the_lock")
    ctypes.PyDLL(None).sleep(int(FOREVER))


def floods(problem: Problem, context: WorkerContext) -> None:
    """As many plans, of as many sources, as the pipe takes."""
    for number in itertools.count():
        context.plan(ladder_plan(problem, number % 3), f"floods {number % 50}")


def has_children(problem: Problem, context: WorkerContext) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    context.note(f"pid {child.pid}")
    sleeps(problem, context)


# ------------------------------------------------------------------------------------------------------ those that die


def exits(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 1), "exits")
    os._exit(3)


def raises(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 1), "raises")
    raise RuntimeError("it broke")


def segfaults(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 1), "segfaults")
    ctypes.string_at(0)


def leaves(problem: Problem, context: WorkerContext) -> None:
    sys.exit(0)


def allocates(problem: Problem, context: WorkerContext) -> None:
    """More and more memory, after its plan."""
    context.plan(ladder_plan(problem, 1), "allocates")
    _say_where(context)
    taken = []
    while True:
        taken.append(b"x" * (1 << 22))
        time.sleep(0.002)


def has_a_child_that_allocates(problem: Problem, context: WorkerContext) -> None:
    context.plan(ladder_plan(problem, 1), "has_a_child_that_allocates")
    subprocess.run([sys.executable, "-c", f"import time; taken = b'x' * (1 << 29); time.sleep({FOREVER})"], check=False)


def holds_memory(problem: Problem, context: WorkerContext) -> None:
    """512 MiB, for longer than it takes to notice."""
    taken = b"x" * (1 << 29)
    time.sleep(0.3)
    _say_where(context)
    context.plan(ladder_plan(problem, 2), "holds_memory")
    del taken


def says_its_oom_score(problem: Problem, context: WorkerContext) -> None:
    with open("/proc/self/oom_score_adj") as stream:
        context.note(f"score {stream.read().strip()}")


# ------------------------------------------------------------------------------------------------------ those that err


def prints(problem: Problem, context: WorkerContext) -> None:
    print("talk on standard output", flush=True)
    os.write(1, b"\x05\0\0\0\0\0\0\0talk")
    subprocess.run([sys.executable, "-c", "print('talk of a child')"], check=True)
    context.note(f"input: {sys.stdin.read()!r}")
    context.plan(ladder_plan(problem, 2), "prints")


def overfills(problem: Problem, context: WorkerContext) -> None:
    """Better than the optimum, but does not fit; then a plan that does."""
    context.plan(ladder_plan(problem, 4), "overfills")
    context.plan(ladder_plan(problem, 1), "careful")


def boasts(problem: Problem, context: WorkerContext) -> None:
    """A good plan that claims to be still better."""
    context.plan(msgspec.structs.replace(ladder_plan(problem, 3), objective=OPTIMUM - 1), "boasts")


def repeats_nonsense(problem: Problem, context: WorkerContext) -> None:
    for _ in range(200):
        context.plan(ladder_plan(problem, 4), "nonsense")
        context.note("x" * 5000)


def writes_no_plan(problem: Problem, context: WorkerContext) -> None:
    context.plan({"format": "something else"}, "no plan")
    context.plan(ladder_plan(problem, 1), "careful")


def writes_garbage(problem: Problem, context: WorkerContext) -> None:
    """Breaks the protocol: a length beyond reason."""
    context.plan(ladder_plan(problem, 1), "writes_garbage")
    os.write(context.send.__self__._outgoing.fileno(), b"\xff" * 4096)
    time.sleep(FOREVER)


def writes_another_message(problem: Problem, context: WorkerContext) -> None:
    """Breaks the protocol: something of the right length that is no report."""
    context.plan(ladder_plan(problem, 1), "writes_another_message")
    os.write(context.send.__self__._outgoing.fileno(), b"\x03\0\0\0\0\0\0\0abc")
    time.sleep(FOREVER)


def bounds_too_high(problem: Problem, context: WorkerContext) -> None:
    context.bound(OPTIMUM + 10, "bounds_too_high")


def bounds_too_high_then_finds(problem: Problem, context: WorkerContext) -> None:
    context.bound(FLOOR + 1, "honest")
    context.bound(OPTIMUM + 1, "bounds_too_high")
    context.plan(ladder_plan(problem, 3), "finds")
    context.bound(FLOOR + 2, "bounds_too_high")
