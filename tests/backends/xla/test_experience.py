"""What earlier programs teach, and flags in the loop."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stowplan.backends.xla import tune_workload
from stowplan.backends.xla.bandit import BATCH, PREVIEWS_OF_A_COMPILE
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.experience import EarlierProgram, Experience, Improvement, shipped
from stowplan.backends.xla.knobs import CAPACITY_OPTION, DEFAULT, SCOPED_OPTION, Knobs, between, flags_of
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.store import Compiled
from stowplan.errors import InputError
from stowplan.hardware.targets import load_target, target_names, xla_chip
from tests.backends.xla.conftest import WORKLOAD, Fake

#: Those of the fake program, about.
FEATURES = (0.37, 0.16, 0.0, 0.0, 0.0, 0.5, 0.05)

CHIPS = [name for name in target_names() if load_target(name).xla is not None]


def earlier(target: str, features: tuple[float, ...], **ways: tuple[int, int]) -> EarlierProgram:
    return EarlierProgram(family="toy", target=target, features=features, ways=ways)


def gained(target: str, features: tuple[float, ...], **gains: float) -> EarlierProgram:
    return EarlierProgram(family="toy", target=target, features=features, ways={}, gains=gains)


def test_programs_count_by_how_alike_they_are() -> None:
    near = earlier("tpu-v5e", (0.5, 0.5), scavenge=(3, 4))
    known = Experience(programs=(near,)).about("tpu-v5e", (0.5, 0.5))
    assert known == {"scavenge": (3.0, 4.0)}
    farther = Experience(programs=(near,)).about("tpu-v5e", (0.5, 0.8))["scavenge"]
    elsewhere = Experience(programs=(near,)).about("tpu-v6e", (0.5, 0.5))["scavenge"]
    assert farther[1] < 4
    assert elsewhere[1] < 4
    assert farther[0] / farther[1] == pytest.approx(elsewhere[0] / elsewhere[1]) == pytest.approx(0.75)
    # Many programs together do not outweigh all that this one will show.
    many = Experience(programs=(near,) * 50).about("tpu-v5e", (0.5, 0.5))["scavenge"]
    assert many == pytest.approx((4.5, 6.0))
    assert Experience(programs=(near,)).without(["toy"]).about("tpu-v5e", (0.5, 0.5)) == {}


def test_what_a_flag_saved_before_counts_beside_its_preview() -> None:
    def expected(
        *gains: float, place: float = 0.5, chip: str = "tpu-v5e", flag: str = "scavenge", promised: float | None = -0.02
    ) -> Improvement:
        programs = tuple(gained("tpu-v5e", (0.5,), scavenge=gain) for gain in gains)
        return Experience(programs=programs).improvement(flag, chip, (place,), promised)

    assert expected() == (0.0, -0.02)
    assert expected(promised=0.05) == (0.05, 0.05)
    assert expected(promised=None) == (0.0, 0.0)
    # A preview counts for a quarter of a program just like this one.
    assert expected(0.04) == pytest.approx((0.04 / 1.25, 0.035 / 1.25))
    # What is lost is not kept.
    assert expected(0.04, -0.9) == pytest.approx((0.04 / 2.25, -0.865 / 2.25))
    assert expected(0.04, flag="scoped_half").saved == 0.0
    assert 0.0 < expected(0.04, place=0.9).saved < 0.032
    assert 0.0 < expected(0.04, chip="tpu-v6e").saved < 0.032


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "experience.json"
    known = Experience(programs=(earlier("tpu-v5e", (0.5,), corrections=(1, 2)),))
    known.save(path)
    assert Experience.load(path) == known
    path.write_text(path.read_text().replace('"corrections"', "3"))
    with pytest.raises(InputError, match=r"experience\.json"):
        Experience.load(path)


def test_what_ships_names_flags_that_are_there() -> None:
    names = {"knobs"} | {name for chip in CHIPS for name in flags_of(xla_chip(chip))}
    for program in shipped().programs:
        assert program.target in CHIPS
        assert set(program.ways) <= names
        assert all(0 <= wins <= tries for wins, tries in program.ways.values())


@pytest.mark.parametrize("chip", CHIPS)
def test_flags_of_a_chip(chip: str) -> None:
    found = flags_of(xla_chip(chip))
    assert tuple(found) == xla_chip(chip).flags
    scoped = {name: int(str(options[SCOPED_OPTION])) for name, options in found.items() if SCOPED_OPTION in options}
    if scoped:
        assert scoped["scoped_double"] == 4 * scoped["scoped_half"] == (xla_chip(chip).scoped or 0) >> 9


def test_where_a_limit_between_is_worth_a_try() -> None:
    def found(chip: str, name: str) -> object:
        target = load_target(chip)
        options = between(xla_chip(chip), target.fast_memory.capacity, flags_of(xla_chip(chip))[name])
        return options and options[SCOPED_OPTION]

    assert [found(chip, "scoped_double") for chip in ("tpu-7x", "tpu-v6e", "tpu-v5e")] == ["49152", "49152", None]
    assert [found(chip, "scoped_half") for chip in ("tpu-7x", "tpu-v5e")] == ["24576", "12288"]
    assert found("tpu-v6e", "scavenge") is None


def test_a_flag_makes_another_program_whose_values_have_other_names() -> None:
    knobs = DEFAULT.moved(first=["a"]).with_option("xla_msa_a", "20").with_flags({"xla_own": True})
    assert (knobs.first, knobs.preload) == (frozenset(), "")
    assert knobs.compiler_options() == {"xla_own": True, "xla_msa_a": "20"}
    assert knobs.moved(last=["b"]).flags == knobs.flags
    assert knobs.with_flags({"xla_other": False}).flags == (("xla_other", False), ("xla_own", True))
    assert knobs.describe() == "own=true"


class TestLoop:
    """The fake program under a flag of the tests' own."""

    @pytest.fixture(autouse=True)
    def flagged(self, quick_plans: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stowplan.backends.xla.run.flags_of", lambda chip: {"scavenge": {"xla_flag": "1"}})

    def test_settings_are_found_on_top_of_a_flag(self, fake: Fake) -> None:
        tuning = tune_workload(WORKLOAD, compiles=14)
        # The flag saves a tenth of the fake's cycles: what comes after it keeps it.
        at = [trial.way for trial in tuning.trials].index("scavenge")
        assert "flag=1" in tuning.trials[at].steer
        assert any("flag=1" in trial.steer and trial.way != "scavenge" for trial in tuning.trials[at + 1 :])
        assert tuning.compiler_options["xla_flag"] == "1"
        assert len(tuning.compiler_options) > 1
        assert [options["xla_flag"] for options in fake.previews if "xla_flag" in options]

    def test_a_flag_that_promises_a_loss_is_not_compiled(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        preview = Evidence.preview

        def previewed(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            found = preview(self, knobs, compiled)
            return found._replace(score=msgspec.structs.replace(found.score, cycles=9000)) if knobs.flags else found

        monkeypatch.setattr(Evidence, "preview", previewed)
        tuning = tune_workload(WORKLOAD, compiles=14)
        assert "scavenge" not in [trial.way for trial in tuning.trials]
        assert tuning.gain > 0

    @pytest.mark.slow
    def test_a_flag_that_the_user_sets_is_not_tried(self, fake: Fake) -> None:
        tuning = tune_workload(WORKLOAD, compiles=14, compiler_options={"xla_flag": "0"})
        assert "scavenge" not in [trial.way for trial in tuning.trials]

    @pytest.mark.slow
    def test_it_begins_where_earlier_programs_succeeded(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        preview = Evidence.preview

        def previewed(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            """Flags promise nothing, settings do."""
            return preview(self, knobs, compiled)._replace(score=Score(4500 if knobs.flags else 4000, 0))

        monkeypatch.setattr(Evidence, "preview", previewed)

        def place(experience: Experience) -> int:
            ways = [trial.way for trial in tune_workload(WORKLOAD, compiles=14, experience=experience).trials]
            return ways.index("scavenge") if "scavenge" in ways else len(ways)

        good = Experience(programs=(earlier("tpu-v4", FEATURES, scavenge=(9, 9)),))
        bad = Experience(programs=(earlier("tpu-v4", FEATURES, scavenge=(0, 9)),))
        assert place(good) < place(bad)

    @pytest.mark.parametrize(("saved", "is_first"), [(0.9, True), (0.1, False)])
    def test_settings_come_before_a_flag_that_as_much_work_saves_less_by(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch, saved: float, is_first: bool
    ) -> None:
        preview = Evidence.preview

        def previewed(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            """Both promise something."""
            return preview(self, knobs, compiled)._replace(score=Score(4000, 0))

        monkeypatch.setattr(Evidence, "preview", previewed)
        alike = gained("tpu-v4", FEATURES, knobs=saved, scavenge=0.2)
        tuning = tune_workload(WORKLOAD, compiles=14, experience=Experience(programs=(alike,)))
        first = tuning.trials[2]
        assert [tuning.trials[0].way, tuning.trials[1].way] == ["default", "all_slow"]
        assert (first.way != "scavenge") == is_first

    @pytest.mark.parametrize("jobs", [1, 2, 3])
    def test_side_by_side(self, fake: Fake, jobs: int) -> None:
        tuning = tune_workload(WORKLOAD, compiles=11, jobs=jobs)
        again = tune_workload(WORKLOAD, compiles=11, jobs=jobs)
        assert 6 <= len(tuning.trials) == tuning.compiles_run <= 11
        assert len(tuning.trials) + tuning.previews / PREVIEWS_OF_A_COMPILE <= 11
        assert [trial.total for trial in tuning.trials] == [trial.total for trial in again.trials]
        assert tuning.trials[tuning.best].total == min(trial.total for trial in tuning.trials)


@pytest.mark.usefixtures("quick_plans")
class TestLaterChips:
    """The fake program for a chip whose fast memory is another space, where nothing in it does harm."""

    def test_what_is_idle_there_is_not_tried(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Evidence, "why_nothing", lambda self: "")
        tuning = tune_workload(WORKLOAD, target="tpu-v5e", compiles=12, experience=Experience())
        ways = {trial.way for trial in tuning.trials}
        assert tuning.default.cycles == 4500
        assert tuning.gain > 0
        assert ways <= {"default", "correct", "explore", "plan", "preload", "return", "perturb", "whole", "draw"} | {
            *flags_of(xla_chip("tpu-v5e"))
        }
        assert not [options for options in fake.compiles if "xla_msa_enable" in options or CAPACITY_OPTION in options]

    def test_two_compiles_are_enough_for_a_setting(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Evidence, "why_nothing", lambda self: "")
        tuning = tune_workload(WORKLOAD, target="tpu-v5e", compiles=2)
        assert len(tuning.trials) == 2
        assert tuning.previews == BATCH

    @pytest.mark.slow
    def test_what_leaves_kernels_less_is_planned_with_more(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        preview = Evidence.preview

        def previewed(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            seen.append((knobs.flags, self.capacity >> 20))
            return preview(self, knobs, compiled)

        monkeypatch.setattr(Evidence, "preview", previewed)
        tune_workload(WORKLOAD, target="tpu-v5e", compiles=20, compiler_options={"fake": "scoped"}, experience=Experience())
        assert (((SCOPED_OPTION, "8192"),), 120) in seen
        assert (((SCOPED_OPTION, "32768"),), 96) in seen

    def test_it_says_where_there_is_nothing_to_gain(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Evidence, "moves", lambda self, trial: [])
        preview = Evidence.preview

        def previewed(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            return preview(self, knobs, compiled)._replace(score=self.trials[0].score if self.trials else Score(4500, 0))

        monkeypatch.setattr(Evidence, "preview", previewed)
        tuning = tune_workload(WORKLOAD, target="tpu-v5e")
        assert (tuning.stop_reason, len(tuning.trials), tuning.gain) == ("nothing_to_gain", 2, 0.0)
        assert tuning.notes[-1].startswith("nothing to gain here: 97% of the fast memory is free, 0.00% of the time is waits")

    def test_between_a_scoped_limit_that_wins_and_the_default_stands_another(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = Evidence.add

        def added(self: Evidence, knobs: Knobs, compiled: Compiled) -> Trial:
            """Twice the limit saves a third, the one between a half; half the limit loses."""
            cycles = {"65536": 3000, "49152": 2250, "16384": 5000}.get(str(dict(knobs.flags).get(SCOPED_OPTION)))
            found = add(self, knobs, compiled)
            if cycles is None:
                return found
            self.trials[-1] = found._replace(score=Score(cycles, 0))
            return self.trials[-1]

        monkeypatch.setattr(Evidence, "add", added)
        alike = gained("tpu-v6e", FEATURES, scoped_double=0.2, scoped_half=0.1)
        known = Experience(programs=(alike,))
        given = {"fake": "scoped"}
        tuning = tune_workload(WORKLOAD, target="tpu-v6e", compiles=14, compiler_options=given, experience=known)
        ways = [trial.way for trial in tuning.trials]
        assert ways[1:3] == ["scoped_double", "scoped_between"]
        assert ways.count("scoped_between") == 1
        assert tuning.compiler_options[SCOPED_OPTION] == "49152"
