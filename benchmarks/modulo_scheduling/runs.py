"""Runs of methods on loop bodies, kept as JSON lines: one for each run that has come to its end.

A run is known by the digest of its problem (graph, machine, rules) and by all options that change its result, so a file of runs
can be gone on with, and runs of another graph or other rules never stand for it. Several processes may append to one file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import stowplan
from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.modulo_scheduling.equal_work import HEURISTICS
from stowplan.errors import VerificationError
from stowplan.frontends.dfg import Dfg, lower, read_dot, read_json
from stowplan.hardware.se import compare, load_machine
from stowplan.models.modulo_scheduling import cpsat, milp
from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, least_ii, objective_bound
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import Tally

#: Kernels of the paper. An IFFT is the same graph as the FFT of its size: only the data, the twiddle factors, differ.
KERNELS = ("vector_add", "multiply_add", "distance", "fft8", "fft16", "fft32", "fft64")

#: Ends a run of the portfolio as soon as the initiation interval is proven: the objective counts it in millions.
INTERVAL_GAP = 0.001

#: Iterations that the simulator runs of every plan.
_ITERATIONS = 6


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the result of a run, besides its problem."""

    method: str
    seed: int = 0
    time_limit: float = 0.0
    """Seconds; for methods that are counted in evaluations a limit that should not be reached."""
    evaluations: int = 0
    """Of ``search``, ``random`` and ``evolution``: as much work as placing every instruction so often."""
    interval_only: bool = False
    """Whether the run ends as soon as the initiation interval is proven."""
    workers: int = 2


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found."""

    key: str
    suite: str
    graph: str
    max_delay: int | None
    inputs: str
    machine: str
    instructions: int
    edges: int
    mii: int
    path: int
    """Critical path, in clocks."""
    options: Options
    status: str
    """Of the methods that prove something: ``optimal``, ``feasible``, ``infeasible`` or ``no_plan``; of others the last two."""
    ii: int | None = None
    makespan: int | None = None
    ii_bound: int | None = None
    makespan_bound: int | None = None
    """At the initiation interval of the bound."""
    proven_after: float | None = None
    """Seconds until plan and bound agreed on the initiation interval, or infeasibility was proven."""
    found_after: int | None = None
    """Evaluations until the plan was found."""
    evaluations: int | None = None
    seconds: float
    checked: str
    """``ok`` where verifier and simulator agree with the plan; what is wrong elsewhere; empty without a plan."""

    @property
    def is_proven(self) -> bool:
        """Whether no smaller initiation interval is possible."""
        return self.ii is not None and self.ii_bound is not None and self.ii <= self.ii_bound


def graph_of(name: str) -> Dfg:
    """A kernel by name, or a graph by path."""
    if name.endswith((".json", ".json.gz")):
        return read_json(name)
    if name.endswith((".dot", ".gv")):
        return read_dot(name)
    kind = name.rstrip("0123456789")
    if kind in ("fft", "ifft"):
        return kernels.fft(int(name[len(kind) :]), inverse=kind == "ifft")
    made: Dfg = getattr(kernels, name)()
    return made


def problem_of(name: str, max_delay: int | None, inputs: str, machine: str) -> Problem:
    """The problem of a graph."""
    rules = Rules(max_delay=max_delay)
    return lower(graph_of(name), load_machine(machine), rules=rules, inputs=inputs)  # type: ignore[arg-type]


class Store:
    """Records in a file, by key."""

    def __init__(self, path: Path | None):
        self.path = path
        self._known = {} if path is None else {record.key: record for record in read_records(path)}

    def get(self, name: str, max_delay: int | None, inputs: str, machine: str, options: Options) -> Record:
        """The record of a run, which is run where there is none."""
        problem = problem_of(name, max_delay, inputs, machine)
        key = hashlib.sha256(msgspec.json.encode((problem.digest, options), order="sorted")).hexdigest()[:16]
        if key not in self._known:
            record = perform(problem, name, inputs, key, options)
            self._known[key] = record
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab") as stream:
                    stream.write(msgspec.json.encode(record) + b"\n")
        return self._known[key]


def read_records(path: Path) -> Iterator[Record]:
    """Records of a file, none where it is not there; a line that a killed run left unfinished is passed over."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield msgspec.json.decode(line, type=Record)
        except msgspec.DecodeError:
            continue


class _Watch:
    """The best plan and bound so far, and when they agreed on the initiation interval."""

    def __init__(self, problem: Problem, options: Options):
        self.began = time.monotonic()
        self.options = options
        self.plan: Plan | None = None
        self.objective: int | None = None
        self.bound = objective_bound(problem)
        self.proven_after: float | None = None
        self.found_after: int | None = None
        self.evaluations: int | None = None
        self.status = "no_plan"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def know(self, objective: int | None, bound: int | None) -> None:
        """Note objective and bound, and the moment at which they agree."""
        self.objective = self.objective if objective is None else objective
        self.bound = self.bound if bound is None else max(self.bound, bound)
        both = self.objective is not None and decode_objective(self.objective)[0] <= decode_objective(self.bound)[0]
        if both and self.proven_after is None:
            self.proven_after = self.seconds

    def on_plan(self, plan: Plan) -> None:
        self.plan = plan
        self.know(plan.objective, None)

    def should_stop(self) -> bool:
        return self.options.interval_only and self.proven_after is not None


def _portfolio(problem: Problem, options: Options, watch: _Watch) -> None:
    result = stowplan.solve(
        problem,
        time_limit=options.time_limit,
        seed=options.seed,
        workers=options.workers,
        gap=INTERVAL_GAP if options.interval_only else 0.0,
        on_progress=lambda now: watch.know(now.objective, now.bound),
    )
    watch.plan, watch.status = result.plan, result.status
    watch.know(result.objective, result.bound)


def _cpsat(problem: Problem, options: Options, watch: _Watch) -> None:
    outcome = cpsat.solve(
        problem,
        time_limit=options.time_limit,
        workers=options.workers,
        seed=options.seed,
        on_plan=watch.on_plan,
        on_bound=lambda bound: watch.know(None, bound),
        should_stop=watch.should_stop,
    )
    watch.plan, watch.status = outcome.plan, outcome.status
    watch.know(None if outcome.plan is None else outcome.plan.objective, outcome.bound)


def _milp(problem: Problem, options: Options, watch: _Watch) -> None:
    solver = options.method.partition(":")[2]
    other = milp.solve(problem, solver, time_limit=options.time_limit, on_plan=watch.on_plan)
    watch.plan, watch.status = other.plan, other.status
    watch.know(None if other.plan is None else other.plan.objective, other.bound)


def _counted(play: Callable[[Tally, int, int, Callable[[], bool]], None]) -> Callable[[Problem, Options, _Watch], None]:
    """A method that is counted in evaluations."""

    def run(problem: Problem, options: Options, watch: _Watch) -> None:
        if find_obstacle(problem) is not None:
            watch.status = "infeasible"
            return
        tally = Tally(Body(problem))
        over = lambda: watch.seconds > options.time_limit or tally.evaluations >= options.evaluations  # noqa: E731
        play(tally, options.seed, options.evaluations, over)
        watch.evaluations = tally.evaluations
        if tally.best is not None:
            watch.plan, watch.status, watch.found_after = tally.best, "feasible", tally.progress[-1][0]

    return run


#: Methods that are counted in evaluations.
COUNTED = ("search", "random", "evolution")

#: Methods by name; ``milp:SOLVER`` besides.
METHODS: dict[str, Callable[[Problem, Options, _Watch], None]] = {
    "portfolio": _portfolio,
    "cpsat": _cpsat,
    **{name: _counted(HEURISTICS[name]) for name in COUNTED},
}


def method_of(name: str) -> Callable[[Problem, Options, _Watch], None]:
    """A method by name; KeyError for an unknown one."""
    return _milp if name.startswith("milp:") else METHODS[name]


def perform(problem: Problem, name: str, inputs: str, key: str, options: Options) -> Record:
    """Run a method."""
    watch = _Watch(problem, options)
    method_of(options.method)(problem, options, watch)
    seconds, plan = watch.seconds, watch.plan
    proves = options.method not in COUNTED
    low, span = decode_objective(watch.bound)
    proven_after = watch.proven_after if proves else None
    if watch.status == "infeasible":
        proven_after = seconds
    return Record(
        key=key,
        suite=Path(name).parent.name if Path(name).suffix else "kernels",
        graph=problem.name,
        max_delay=problem.rules.max_delay,
        inputs=inputs,
        machine=problem.machine.name,
        instructions=len(problem.instructions),
        edges=len(problem.edges),
        mii=least_ii(problem),
        path=critical_path(problem),
        options=options,
        status=watch.status,
        ii=None if plan is None else plan.ii,
        makespan=None if plan is None else plan.makespan,
        ii_bound=low if proves else None,
        makespan_bound=span if proves else None,
        proven_after=None if proven_after is None else round(proven_after, 2),
        found_after=watch.found_after,
        evaluations=watch.evaluations,
        seconds=round(seconds, 2),
        checked="" if plan is None else _check(problem, plan),
    )


def _check(problem: Problem, plan: Plan) -> str:
    found = verify(problem, plan)
    if not found.ok:
        return str(found.violations[0])
    try:
        compare(problem, plan, _ITERATIONS)
    except VerificationError as error:
        return str(error)
    return "ok"
