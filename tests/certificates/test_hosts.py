"""Certificates of problems with a host: never above the best plan; what is changed in them, or in the host, shows no more."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import msgspec
import pytest

from stowplan import files
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.checker import check_parsed
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, digest
from stowplan.certificates.maker import certify
from stowplan.models.rematerialization.problem import Host, Problem
from tests.certificates.test_checker import mutated, verdict_of
from tests.cli.conftest import Cli, cli
from tests.models.rematerialization.host_cases import SLOW, chain, hosted, least_cost
from tests.paths import DATA

__all__ = ["cli"]

Json = dict[str, Any]

#: Bandwidths of a chain, and the least added cost of each: tests/portfolio/rematerialization/test_offload.py has its plans.
CHAINS = ((0.5, 16), (1, 8), (8, 0))


#: What is said of :func:`certified_chain` where its proof shows less than it did.
LESS = "bound: it claims 16, its proof shows "


def certified_chain(bandwidth: float = 0.5) -> tuple[Json, Json]:
    """The document of a chain, and that of its certificate, which has several ranges but where copies take no time."""
    problem = chain(16, 24, bandwidth)
    return json.loads(files.encode(problem)), json.loads(files.encode(certify(problem)))


def refusal(rules: Json, stated: Json) -> str:
    """What the checker says of a problem that was changed, signed anew, or of another proof."""
    with pytest.raises((MalformedError, UnprovenError)) as caught:
        check_parsed(rules, stated | {"problem": digest(rules)})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_seed(seed: int) -> str:
    """Compare a certificate with every plan."""
    problem = hosted(seed, 3)
    least = least_cost(problem)
    found = certify(problem, infeasible=least is None)
    if least is None:
        return "infeasible" if found.is_proof and found.check(problem).bound is None else "not proven"
    assert found.form == "ranges", seed
    assert found.check(problem).bound == found.bound
    assert found.bound is not None
    assert found.bound <= least, (seed, found.bound, least)
    assert not certify(problem, infeasible=True).is_proof, seed
    return "tight" if found.bound == least else "below"


def test_no_certificate_claims_more_than_the_optimum() -> None:
    assert {check_seed(seed) for seed in (2, 3, 5, 12, 14, 45, 145, 196)} == {"infeasible", "tight", "below"}


@pytest.mark.slow
def test_no_certificate_of_hundreds_claims_more_than_the_optimum() -> None:
    found = [check_seed(seed) for seed in range(300) if seed not in SLOW]
    assert found.count("tight") > 60
    assert found.count("infeasible") > 40


@pytest.mark.parametrize(("bandwidth", "least"), CHAINS)
def test_a_chain_is_certified_to_the_optimum(bandwidth: float, least: int) -> None:
    problem = chain(16, 24, bandwidth)
    found = certify(problem)
    assert (found.form, found.check(problem).bound) == ("ranges", least)


def test_no_mutant_claims_too_much() -> None:
    chance = random.Random(0)
    cases = [(hosted(seed, 3), least_cost(hosted(seed, 3))) for seed in (3, 5, 12, 14, 45)]
    cases += [(chain(16, 24, bandwidth), least) for bandwidth, least in CHAINS]
    accepted = 0
    for problem, least in cases:
        found = certify(problem, infeasible=least is None)
        rules, stated = json.loads(files.encode(problem)), json.loads(files.encode(found))
        for _ in range(150):
            verdict = verdict_of(rules, mutated(stated, chance))
            if verdict is not None:
                accepted += 1
                assert least is None or (verdict.bound is not None and verdict.bound <= least), (problem.name, verdict)
    assert 0 < accepted < 150 * len(cases)


def test_ranges_cover_all_that_may_be_fetched() -> None:
    rules, stated = certified_chain()
    ranges = stated["proof"]["ranges"]
    assert len(ranges) > 1

    def changed(parts: list[Any]) -> Json:
        return stated | {"proof": stated["proof"] | {"ranges": parts}}

    assert refusal(rules, changed(ranges[:-1])).startswith("proof.ranges: they end at ")
    assert "there may be" in refusal(rules, changed([]))
    # Without one of them the next begins sooner, where copies take less time.
    for number in range(len(ranges) - 1):
        assert refusal(rules, changed(ranges[:number] + ranges[number + 1 :])).startswith(LESS)
    # A wider one needs a cut with more bytes.
    for number, part in enumerate(ranges[:-1]):
        wider = [*ranges[:number], part | {"last": ranges[number + 1]["last"] - 1}, *ranges[number + 1 :]]
        assert refusal(rules, changed(wider)).startswith(LESS)
    assert refusal(rules, changed(ranges[::-1])).startswith("last: found ")
    assert refusal(rules, changed([ranges[0] | {"last": -1}, *ranges[1:]])).startswith("last: found -1")
    assert refusal(rules, changed([1])).startswith("proof: AttributeError")


def test_flows_and_weights_count() -> None:
    rules, stated = certified_chain()
    for number, part in enumerate(stated["proof"]["ranges"]):
        if not part["price"]:
            continue
        for field, value in (("scale", 2 * part["scale"]), ("price", 0), ("held", []), ("held", part["held"] * 2)):
            other = copy.deepcopy(stated)
            other["proof"]["ranges"][number][field] = value
            assert refusal(rules, other)


def test_the_host_counts() -> None:
    rules, stated = certified_chain()
    for bandwidth in (1, 1e300):
        changed = rules | {"host": rules["host"] | {"bandwidth": bandwidth}}
        assert refusal(changed, stated).startswith(LESS)
        with pytest.raises(UnprovenError, match="digests differ"):
            check_parsed(changed, stated)
    for wrong in (0, -1, 0.0, float("inf"), True, "1"):
        assert refusal(rules | {"host": rules["host"] | {"bandwidth": wrong}}, stated)
    without = {name: value for name, value in rules.items() if name != "host"}
    assert refusal(without, stated).startswith("proof: KeyError")
    # On a host with less room fewer bytes may be fetched, so that less need be covered.
    smaller = rules | {"host": rules["host"] | {"limit": 3}}
    assert check_parsed(smaller, stated | {"problem": digest(smaller)}).bound == 16


def test_bandwidths_are_exact() -> None:
    """A tenth is no binary fraction: what a copy takes is rounded up from what the file says, not from its decimal."""
    problem = chain(3, 24, 0.1, size=1)
    assert problem.copy_cost(0) == 10
    problem = msgspec.structs.replace(problem, host=Host(bandwidth=1 / 3, limit=1 << 40))
    assert problem.copy_cost(0) == 4
    assert_holds(problem)


def assert_holds(problem: Problem) -> Certificate:
    """A proof of a bound, which the checker takes."""
    found = certify(problem)
    assert found.is_proof
    assert found.check(problem).bound == found.bound
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 11},  # less than an operator takes
        {"limit": 15, "outputs": (16, 20, 24, 28)},  # less than is there at the end
        {"limit": 15, "free_inputs": False},  # less than an operator takes beside the input
    ],
)
def test_what_never_fits_is_certified(changes: Json) -> None:
    problem = msgspec.structs.replace(chain(16, 24, 8), **changes)
    found = certify(problem, infeasible=True)
    assert (found.form, found.check(problem).bound) == ("ranges", None)
    fits = msgspec.structs.replace(problem, limit=changes["limit"] + 1)
    assert not certify(fits, infeasible=True).is_proof


def test_without_a_limit_nothing_is_added() -> None:
    assert assert_holds(msgspec.structs.replace(chain(4, 24, 1), limit=None)).bound == 0


def test_from_file_to_verdict(cli: Cli, tmp_path: Any) -> None:
    source, plan, proof = DATA / "training-host.remat.json", tmp_path / "plan.json", tmp_path / "proof.json"
    options = ("--candidates", "offload", "--time-limit", 5, "--deterministic", "-q")
    assert cli("solve", source, "-o", plan, "--certificate", proof, *options).code == 0
    checked = cli("verify", source, plan, "--bound", proof)
    assert checked.code == 0, checked
    assert "ranges" in checked.out
    changed = json.loads(proof.read_text())
    changed["proof"]["ranges"].pop()
    proof.write_text(json.dumps(changed))
    assert cli("verify", source, plan, "--bound", proof).code == 4
