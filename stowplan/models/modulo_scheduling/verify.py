"""The verifier of modulo scheduling: checks all rules of a schedule and recomputes its objective, without any solver.

It is written from docs/reference/modulo-scheduling.md alone and shares no code with models, bounds, heuristics or the simulator
of schedules. Nothing here raises an error.

The *II* is the initiation interval, and a *slot* is a clock modulo the II. An *edge* is a value that one instruction produces
and another one consumes; its *delay* is the time that it waits for its consumer. It is *asynchronous* if it goes over a second
network instead of links between tiles. A *flow* is a set of instructions that edges over links connect. A *source* is an
instruction that no value over links from the same iteration triggers, and a *start* is a source that the hardware starts at a
set time. *Siblings* are instructions that must be on different tiles, such as the consumers of one producer. A *variable* is
data of the program in the memory of one tile, and a *buffer* is the space there in which an asynchronous value waits for its
consumers.
"""

from __future__ import annotations

from collections import defaultdict

from stowplan.models.modulo_scheduling._audit import END_OF_TIME, Audit, Code, Verification, Violation, follow, least_clocks
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

__all__ = ["Code", "Verification", "Violation", "verify"]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of modulo scheduling.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, the objective, and the figures ``ii`` and ``makespan`` in clocks. If the plan has the wrong number
        of entries, the objective is None and there are no figures.
    """
    check = _Check(problem, plan)
    if not check.shape():
        return Verification(tuple(check.violations), None)
    makespan = max(map(sum, zip(plan.times, check.latency, strict=True)), default=0)
    if check.places():
        check.slots()
        check.values()
        check.registers()
        check.launches()
        check.accesses()
        check.memories()
        check.siblings()
        check.starts()
    check.pins()
    objective = plan.ii * 1_000_000 + makespan
    check.summary(makespan, objective)
    return Verification(tuple(check.violations), objective, {"ii": plan.ii, "makespan": makespan})


class _Check(Audit):
    """Checks the rules, one in each method. Methods that return a bool say whether further rules can be checked."""

    def shape(self) -> bool:
        """Check that there is one entry for each instruction and each edge; returns whether there is."""
        plan = self.plan
        instruction_count = len(self.problem.instructions)
        counts = [(field, len(getattr(plan, field)), instruction_count) for field in ("tiles", "times", "slots")]
        counts += [(field, len(getattr(plan, field)), len(self.edges)) for field in ("routes", "delays")]
        if plan.interfaces or any(instruction.memory is not None for instruction in self.problem.instructions):
            counts.append(("interfaces", len(plan.interfaces), instruction_count))
        wrong = [(field, count, expected) for field, count, expected in counts if count != expected]
        for field, count, expected in wrong:
            self.add("wrong_count", f"{count} {field}, expected {expected}")
        return not wrong

    def places(self) -> bool:
        """Check that II, tiles and times are in range; returns whether they are, so that the other rules make sense."""
        plan, machine = self.plan, self.machine
        before = len(self.violations)
        if not 1 <= plan.ii <= machine.spoke_depth:
            self.add("ii_out_of_range", f"the initiation interval is {plan.ii}, expected 1 to {machine.spoke_depth}")
        for number, (tile, time) in enumerate(zip(plan.tiles, plan.times, strict=True)):
            if not 0 <= tile < machine.rows * machine.columns:
                self.add("no_such_tile", f"{self.name(number)} is on tile {tile}", number)
            if time < 0 or time + self.latency[number] >= END_OF_TIME:
                self.add("time_out_of_range", f"{self.name(number)} issues at {time}", number)
        return len(self.violations) == before

    def slots(self) -> None:
        """Check the instructions of each tile.

        No two issues and no two results share a slot. The instructions fit into the RAM, and all of them may be on the tile.
        """
        plan = self.plan
        issues: dict[tuple[int, int], int] = {}
        results: dict[tuple[int, int], int] = {}
        count: dict[int, list[int]] = defaultdict(list)
        for number, (tile, time, slot) in enumerate(zip(plan.tiles, plan.times, plan.slots, strict=True)):
            if slot != time % plan.ii:
                self.add("wrong_slot", f"{self.name(number)} issues at {time}, in slot {time % plan.ii}, not {slot}", number)
            first = issues.setdefault((tile, time % plan.ii), number)
            if first != number:
                message = f"{self.name(first)} and {self.name(number)} share slot {time % plan.ii} of tile {tile}"
                self.add("slot_taken", message, first, number)
            clock = (time + self.latency[number]) % plan.ii
            other = results.setdefault((tile, clock), number)
            if other != number and plan.times[other] % plan.ii != time % plan.ii:
                message = f"the results of {self.name(other)} and {self.name(number)} leave tile {tile} at once"
                self.add("result_taken", message, other, number)
            allowed = self.problem.instructions[number].tiles
            if allowed is not None and tile not in allowed:
                named = ", ".join(map(str, allowed))
                self.add("wrong_tile", f"{self.name(number)} is on tile {tile}, it may stand on {named}", number)
            count[tile].append(number)
        depth = self.machine.instruction_depth
        for tile, numbers in count.items():
            if len(numbers) > depth:
                message = f"tile {tile} has {len(numbers)} instructions, its RAM holds {depth}"
                self.add("instruction_ram_full", message, *numbers)

    def values(self) -> None:
        """Check that routes and delays are right, and that no link carries two values at the same clock."""
        plan, limit = self.plan, self.problem.rules.max_delay
        if self.machine.registers:
            limit = min(plan.ii - 1, plan.ii if limit is None else limit)
        least = least_clocks(self.problem)
        # For each (tile, link, clock modulo the II), the value that the link carries: (producer, clock of iteration 0).
        carried: dict[tuple[int, int, int], tuple[int, int]] = {}
        for number, (source, target, distance) in enumerate(self.edges):
            name = f"the value from {self.name(source)} to {self.name(target)}"
            if self.asynchronous[number]:
                self._message(number, source, target, distance, name)
                continue
            transport = self._walk(number, source, target, name, carried)
            if transport is None:
                continue
            hops = least[plan.tiles[source]].get(plan.tiles[target])
            if hops is not None and transport > hops:
                self.add("detour", f"{name} takes {transport} clocks on its way, {hops} would do", source, target)
            delay = plan.times[target] + plan.ii * distance - plan.times[source] - self.latency[source] - transport
            if delay != plan.delays[number]:
                self.add("wrong_delay", f"{name} waits {delay} clocks, not {plan.delays[number]}", source, target)
            if delay < 0:
                self.add("too_early", f"{name} comes {-delay} clocks after {self.name(target)} issues", source, target)
            elif limit is not None and delay > limit:
                self.add("delay_too_long", f"{name} waits {delay} clocks, expected at most {limit}", source, target)

    def registers(self) -> None:
        """Check that no value is overwritten while it waits for another tile, and that each tile has enough registers for the
        values that wait there."""
        plan, registers = self.plan, self.machine.registers
        if not registers:
            return
        results = {
            (tile, (time + latency) % plan.ii): number
            for number, (tile, time, latency) in enumerate(zip(plan.tiles, plan.times, self.latency, strict=True))
        }
        # For each (tile, slot), the producers of the values that wait there.
        waiting: dict[tuple[int, int], set[int]] = defaultdict(set)
        for source, target, distance in self.synchronous:
            tile, ready = plan.tiles[source], plan.times[source] + self.latency[source]
            read = plan.times[target] + plan.ii * distance
            # A value that waits too long is reported elsewhere. Within one interval, a value waits in each slot at most once.
            for clock in range(ready + 1, min(read, ready + plan.ii - 1) + 1):
                if not registers.output or plan.tiles[target] == tile:
                    waiting[plan.tiles[target], clock % plan.ii].add(source)
                    continue
                other = results.get((tile, clock % plan.ii))
                if other is not None:
                    message = f"{self.name(other)} overwrites the value that {self.name(target)} reads from {self.name(source)}"
                    self.add("register_overwritten", message, source, target, other)
                    break
        for (tile, slot), sources in waiting.items():
            if registers.count is not None and len(sources) > registers.count:
                named = ", ".join(self.name(source) for source in sorted(sources))
                message = f"values of {named} wait in tile {tile} in slot {slot}, it has {registers.count} registers"
                self.add("registers_full", message, *sorted(sources))

    def _message(self, number: int, source: int, target: int, distance: int, name: str) -> None:
        """Check route and delay of an asynchronous edge."""
        plan = self.plan
        if plan.routes[number]:
            self.add("broken_route", f"{name} takes links, it goes over the asynchronous fabric", source, target)
        ready = plan.times[source] + self.latency[source] + self.nominal(source)
        delay = plan.times[target] + plan.ii * distance - ready
        if delay != plan.delays[number]:
            self.add("wrong_delay", f"{name} waits {delay} clocks, not {plan.delays[number]}", source, target)

    def launches(self) -> None:
        """Check that flows begin after the values that are sent to them have arrived, and that all readers of such a value
        share a tile."""
        plan, flow = self.plan, self.flows()
        launch = self.launches_of(flow)
        readers: dict[int, set[int]] = defaultdict(set)
        for source, target, distance in self.sent:
            readers[source].add(target)
            ready = plan.times[source] + self.latency[source] + self.nominal(source)
            begins = launch[flow[target]] + plan.ii * distance
            if begins < ready:
                message = (
                    f"the flow of {self.name(target)} begins {ready - begins} clocks before the value of {self.name(source)}"
                )
                self.add("launched_early", message, source, target)
        for source, targets in readers.items():
            if len({plan.tiles[target] for target in targets}) > 1:
                named = ", ".join(f"{self.name(target)} on {plan.tiles[target]}" for target in sorted(targets))
                self.add(
                    "variable_split", f"the value of {self.name(source)} is read on several tiles: {named}", *sorted(targets)
                )

    def accesses(self) -> None:
        """Check that each memory access has an interface that serves its tile and has a free port."""
        plan = self.plan
        interfaces = () if self.machine.asynchronous is None else self.machine.asynchronous.interfaces
        requests: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, which in enumerate(plan.interfaces):
            if self.problem.instructions[number].memory is None:
                if which is not None:
                    self.add("wrong_interface", f"{self.name(number)} has interface {which}, it is no memory access", number)
                continue
            if which is None or not 0 <= which < len(interfaces):
                self.add("wrong_interface", f"{self.name(number)} has interface {which}, there are {len(interfaces)}", number)
                continue
            serves = interfaces[which].tiles
            if serves is not None and plan.tiles[number] not in serves:
                message = f"{self.name(number)} is on tile {plan.tiles[number]}, which {interfaces[which].name} does not serve"
                self.add("wrong_interface", message, number)
            requests[which, (plan.times[number] + self.latency[number]) % plan.ii].append(number)
        for (which, slot), numbers in requests.items():
            ports = interfaces[which].ports
            if len(numbers) > ports:
                named = ", ".join(self.name(number) for number in numbers)
                message = f"{named} ask {interfaces[which].name} in slot {slot}, it takes {ports} at once"
                self.add("port_taken", message, *numbers)

    def _walk(
        self, number: int, source: int, target: int, name: str, carried: dict[tuple[int, int, int], tuple[int, int]]
    ) -> int | None:
        """Follow the route of an edge and return its clocks; None if it does not lead to the consumer.

        ``carried`` has the value on each link so far, and is updated.
        """
        plan, machine = self.plan, self.machine
        route = plan.routes[number]
        at, clocks = plan.tiles[source], 0
        for link in route:
            after = follow(self.problem, at, link)
            if after is None:
                self.add("broken_route", f"{name} takes link {link} of tile {at}, which is not there", source, target)
                return None
            clock = plan.times[source] + self.latency[source] + clocks
            other, when = carried.setdefault((at, link, clock % plan.ii), (source, clock))
            # The same producer at the same clock means the same value; at another clock, it is a value of another iteration.
            if (other, when) != (source, clock):
                message = (
                    f"{name} and a value from {self.name(other)} take link {machine.links[link].name} of tile {at} at once"
                )
                self.add("link_taken", message, other, source, target)
            clocks += machine.links[link].clocks
            at = after
        if at != plan.tiles[target]:
            self.add("broken_route", f"{name} ends at tile {at}, not at {plan.tiles[target]}", source, target)
            return None
        if len(route) > 1 and not self.problem.rules.pass_through:
            self.add("too_many_links", f"{name} takes {len(route)} links", source, target)
        return clocks

    def memories(self) -> None:
        """Check that all users of a variable are on one tile, which is the tile that the problem names if it does, and that
        variables and buffers fit into the memories of the tiles."""
        variables = {variable.id: variable for variable in self.problem.variables}
        users: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                users[name].append(number)
        words: dict[int, int] = defaultdict(int)
        for name, numbers in users.items():
            tiles = {self.plan.tiles[number] for number in numbers}
            if len(tiles) > 1:
                named = ", ".join(f"{self.name(number)} on {self.plan.tiles[number]}" for number in numbers)
                self.add("variable_split", f"the variable {name} is used on several tiles: {named}", *numbers)
            bound = variables[name].tile
            for number in numbers:
                if bound is not None and self.plan.tiles[number] != bound:
                    message = f"{self.name(number)} on tile {self.plan.tiles[number]} uses {name}, which is on tile {bound}"
                    self.add("wrong_memory", message, number)
            for tile in tiles:
                words[tile] += variables[name].words
        for tile, used in self._words_sent():
            words[tile] += used
        capacity = self.machine.memories * self.machine.memory_depth
        for tile, used in words.items():
            if used > capacity:
                self.add("memory_full", f"tile {tile} has variables of {used} words, its memories hold {capacity}")

    def _words_sent(self) -> list[tuple[int, int]]:
        """The (tile, number of words) of the buffer of each value that arrives over the asynchronous fabric."""
        plan, flow = self.plan, self.flows()
        launch = self.launches_of(flow)
        last: dict[int, int] = {}
        tile: dict[int, int] = {}
        for source, target, distance in self.sent:
            read = plan.times[target] + plan.ii * distance
            last[source] = max(read, last.get(source, read))
            tile[source] = plan.tiles[target]
        return [(tile[source], (read - launch[flow[source]]) // plan.ii + 1) for source, read in last.items()]

    def siblings(self) -> None:
        """Check that siblings are on different tiles."""
        rule = self.problem.rules.siblings
        if rule == "none":
            return
        families: dict[tuple[str, int], set[int]] = defaultdict(set)
        for source, target, _ in self.synchronous:
            families["consumers", source].add(target)
            if rule == "consumers_and_producers":
                families["producers", target].add(source)
        seen: set[tuple[int, int]] = set()
        for (kind, of), members in sorted(families.items()):
            first: dict[int, int] = {}
            for member in sorted(members):
                other = first.setdefault(self.plan.tiles[member], member)
                if other != member and (other, member) not in seen:
                    seen.add((other, member))
                    both = f"{self.name(other)} and {self.name(member)}, {kind} of {self.name(of)},"
                    self.add("siblings_share", f"{both} share tile {self.plan.tiles[member]}", other, member)

    def starts(self) -> None:
        """Check that there is one start for each flow, or every source is a start, and that starts are on different tiles."""
        plan = self.plan
        triggered = {target for _, target, distance in self.synchronous if distance == 0}
        sources = [number for number in range(len(plan.tiles)) if number not in triggered]
        ascending = list(plan.starts) == sorted(set(plan.starts))
        if self.problem.rules.starts == "source":
            is_right = list(plan.starts) == sources
        else:
            flow = self.flows()
            allowed = set(sources)
            is_right = ascending and all(number in allowed for number in plan.starts)
            is_right = is_right and sorted(flow[number] for number in plan.starts) == sorted(set(flow))
        if not is_right:
            self.add("wrong_starts", f"the starts are {list(plan.starts)}, sources are {sources}")
            return
        first: dict[int, int] = {}
        for number in plan.starts:
            other = first.setdefault(plan.tiles[number], number)
            if other != number:
                message = f"{self.name(other)} and {self.name(number)} both start a flow on tile {plan.tiles[number]}"
                self.add("starts_share", message, other, number)

    def pins(self) -> None:
        """Check that pinned instructions have their tiles, times and slots."""
        ids = {instruction.id: number for number, instruction in enumerate(self.problem.instructions)}
        for pin in self.problem.pins:
            number = ids[pin.instruction]
            for noun, pinned, is_at in (
                ("tile", pin.tile, self.plan.tiles[number]),
                ("time", pin.time, self.plan.times[number]),
                ("slot", pin.slot, self.plan.slots[number]),
            ):
                if pinned is not None and pinned != is_at:
                    self.add("moved", f"{pin.instruction} has {noun} {is_at}, fixed at {pinned}", number)

    def summary(self, makespan: int, objective: int) -> None:
        """Check that the makespan and the objective that the plan states are the recomputed ones."""
        if self.plan.makespan != makespan:
            self.add("wrong_makespan", f"the plan says {self.plan.makespan} clocks, its makespan is {makespan}")
        if self.plan.objective != objective:
            self.add("wrong_objective", f"the plan says {self.plan.objective}, its objective is {objective}")
