"""What others published, as data, and our runs beside it: like with like, and no verdict that an interval denies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import ledger_runs
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.ledger.beside import Line, beside_published, looking_back, published_elsewhere
from rl_training.ledger.records import Record
from rl_training.ledger.references import Published, Reference, load_reference, shipped_references
from rl_training.ledger.statistics import Estimate, Statistics, student_mean, welch_difference
from rl_training.ledger.suites import load_suite, plan_groups
from rl_training.ledger.text import number

PONG = "ALE/Pong-v5"


@pytest.mark.parametrize("name", shipped_references())
def test_every_reference_can_be_read_and_has_numbers(name: str) -> None:
    reference = load_reference(name)
    assert reference.source and reference.protocol and reference.rows
    assert all(reference.runs(env_id, row) for env_id, rows in reference.rows.items() for row in rows)


def test_dopamine_at_a_million_steps_is_its_fourth_iteration() -> None:
    dopamine = load_reference("dopamine_atari")
    assert dopamine.at(PONG, "DQN CNN", 1_000_000) == tuple(run[3] for run in dopamine.curves[PONG]["DQN CNN"])
    # as read from its data by others (the issue that asked for this): Pong −13.7 and 7.4, Boxing 10.8 and 51.6
    for env_id, row, mean in ((PONG, "DQN CNN", -13.7), (PONG, "QR-DQN CNN", 7.4), ("ALE/Boxing-v5", "DQN CNN", 10.8)):
        runs = dopamine.at(env_id, row, 1_000_000)
        assert len(runs) == 5 and sum(runs) / 5 == pytest.approx(mean, abs=0.05)
    assert dopamine.at(PONG, "DQN CNN", 999_999) == ()


def test_a_reference_is_either_curves_or_figures() -> None:
    with pytest.raises(ValueError, match="either curves or figures"):
        Reference(title="", source="", protocol="", preset=None, measure="training")


@pytest.mark.parametrize(
    ("published", "env_kwargs", "message"),
    [
        ({"source": "dopamin_atari", "row": "DQN CNN"}, {}, "did you mean dopamine_atari?"),
        ({"source": "dopamine_atari", "row": "DQN CN"}, {}, "has no row DQN CN on ALE/Pong-v5; did you mean DQN CNN?"),
        ({"source": "dopamine_atari", "row": "DQN CNN"}, {"preset": "sb3"}, "is of the preset dopamine"),
        ({"source": "dopamine_atari", "row": "DQN CNN"}, {"sticky_probability": 0.0}, "the two do not compare"),
        ({"source": "rl_zoo_atari", "row": "DQN"}, {}, "is of the preset sb3"),
    ],
)
def test_only_like_stands_beside_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], published: dict[str, str], env_kwargs: dict[str, Any], message: str
) -> None:
    base = {"env_id": PONG, "env_kwargs": env_kwargs}
    task = {"name": "Pong", "total_timesteps": 1_000, "base": base, "runs": [{"algo": "dqn", "published": published}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"seeds": [1], "tasks": [task]}))
    assert main(["ledger", str(tmp_path / "mine.yaml"), "--results", str(tmp_path / "results"), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_atari_suite_stands_beside_dopamine_and_names_a_reference_that_exists() -> None:
    suite = load_suite("atari")
    beside = {group.name: group.published.row for group in plan_groups(suite) if group.published}
    assert beside["qr_dqn__atari_pong"] == "QR-DQN CNN" and beside["c51_dqn__atari_boxing_rainbow"] == "Rainbow CNN"
    with pytest.raises(ConfigError, match="no such reference"):
        plan_groups(suite.model_copy(update={"references": ("nobody",)}))


# Intervals


def test_students_interval() -> None:
    # 0 and 2: mean 1, s² = 2, s/√n = 1, and t(1) at 97.5% is tan(0.475 π) = 12.706
    assert student_mean([0.0, 2.0]) == pytest.approx([1.0, 1 - 12.7062, 1 + 12.7062], rel=1e-5)


def test_welchs_interval() -> None:
    # 0 and 2 beside five times 10: only the first spread, so ν = 1
    assert welch_difference([0.0, 2.0], [10.0] * 5) == pytest.approx([-9.0, -9 - 12.7062, -9 + 12.7062], rel=1e-5)
    # equal sizes and spreads: s²/n = 1/3 each, ν = 2(n − 1) = 4, t(4) = 2.77645
    half = 2.776445 * (2 / 3) ** 0.5
    assert welch_difference([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx([-1.0, -1 - half, -1 + half], rel=1e-5)
    assert welch_difference([3.0, 3.0], [1.0, 1.0]) == [2.0, 2.0, 2.0]


# The table


NONE = Estimate(0.0, 0.0, 0.0)


class Told(Statistics):
    """Intervals are given, not computed."""

    def __init__(self, difference: Estimate) -> None:
        super().__init__()
        self._difference = difference
        self.asked: list[Any] = []

    def mean(self, scores: Any) -> Estimate:
        return Estimate(sum(scores) / len(scores), -1.0, 1.0)

    def difference(self, ours: Any, theirs: Any) -> Estimate:
        self.asked.append(theirs)
        return self._difference


def line(*returns: float, steps: int = 1_100_000, published: tuple[str, str] = ("dopamine_atari", "DQN CNN"), final: float = 5.0) -> Line:
    """Runs whose training return at a million steps is what is given; before and after it they have others."""
    records = []
    for seed, value in enumerate(returns, 1):
        raw = ledger_runs.record(f"dqn__pong__seed{seed}", "dqn", PONG, final=final)
        raw["config"]["total_timesteps"] = steps
        raw["training"] = [[750_000, -99.0, 9], [1_000_000, value, 8], [1_100_000, 99.0, 3], [5_000_000, 99.0, 3]]
        records.append(Record.from_json(raw, source="here"))
    return Line("`dqn`", PONG, steps, tuple(records), Published(source=published[0], row=published[1]))


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Estimate(9.0, 0.1, 18.0), "9 [0.1, 18] | **better** |"),
        (Estimate(9.0, -0.1, 18.0), "9 [−0.1, 18] | no difference shown |"),
        (Estimate(-9.0, -18.0, -0.1), "−9 [−18, −0.1] | **worse** |"),
    ],
)
def test_better_only_where_the_interval_of_the_difference_says_so(difference: Estimate, words: str) -> None:
    text = "\n".join(beside_published([line(-4.0, -5.0)], Told(difference)))
    assert "| `dqn` | 1,000,000 | −4, −5 | −4.5 [−1, 1] | DQN CNN | −13.74 | −16.02 to −11.63 (5 runs) | " in text
    # a span of an eighth of a stretch: a sixteenth of what counts is of the stretch before, −16.11 on average
    assert f" | −13.89 (31,000 steps) | {words}" in text


def test_one_seed_or_one_figure_has_no_verdict() -> None:
    told = Told(Estimate(9.0, 8.0, 10.0))
    alone = "\n".join(beside_published([line(-4.0)], told))
    assert "| −4 | −4 |" in alone and alone.count("one seed: no verdict") == 1
    figure = "\n".join(beside_published([line(0.0, 0.0, steps=5_000_000, published=("btr", "BTR"), final=20.0)], told))
    assert "| 5,000,000 | 20, 20 | 20 [−1, 1] | BTR | 10.1 | one figure |  | 9.9 | one figure: no verdict |" in figure


def test_looking_back_over_a_curve() -> None:
    curve = ((10, 0.0), (20, 10.0), (30, 99.0))
    # at e from 10 to 20 the mean over the 10 before is e − 10: 5 on average; and since the start it is at most over e steps
    assert looking_back(curve, 20, 10.0) == pytest.approx(5.0)
    assert looking_back(curve, 20, 0.0) == pytest.approx(10.0, abs=0.5)  # the first of 100 points looks back by a step
    assert looking_back(curve, 10, 1e9) == 0.0
    # since the start: the mean over e of 10(e − 10)/e is 10(1 − ln 2)
    assert looking_back(curve, 20, 1e9) == pytest.approx(10 * (1 - math.log(2)), rel=1e-3)


def test_returns_of_many_games_at_once_are_compared_as_far_back() -> None:
    """8 episodes ended in 250,000 steps: one takes 31,250, and with eight games at once the run makes eight times as many meanwhile."""
    one = line(-4.0, -5.0)
    assert one.span == 31_250 and one.theirs_as_far_back == pytest.approx(one.theirs, abs=1.0)
    records = tuple(replace(record, config={**record.config, "num_envs": 8}) for record in one.records)
    many = replace(one, records=records)
    assert many.span == 250_000
    # episodes of a whole stretch: on average half of what they gained is of the stretch before
    dopamine = load_reference("dopamine_atari")
    halves = [(now + before) / 2 for now, before in zip(many.theirs, dopamine.at(PONG, "DQN CNN", 750_000), strict=True)]
    assert many.theirs_as_far_back == pytest.approx(halves)
    told = Told(NONE)
    assert "| −14.93 (250,000 steps) |" in "\n".join(beside_published([many], told)) and told.asked == [many.theirs_as_far_back]


def test_what_is_not_there_is_said() -> None:
    told = Told(NONE)
    assert "| not measured yet |" in "\n".join(beside_published([line()], told))
    late = "\n".join(beside_published([line(1.0, steps=90_000_000)], told))
    assert "| 90,000,000 | not measured yet |" in late and "none at this step" in late


def test_figures_at_other_protocols_stand_by_themselves() -> None:
    text = "\n".join(published_elsewhere(["btr", "rl_zoo_atari"]))
    assert "| BTR | 5,000,000 | 10.1 | 87 | 450 | 7700 |" in text
    assert "| QR-DQN (RL Baselines3 Zoo) | 10,000,000 | 20.5 |  | 394 | 14,800 |" in text


def test_large_numbers_are_written_whole() -> None:
    assert [number(value) for value in (9999.4, 9999.6, -14_800.0, 0.00012)] == ["9999", "10,000", "−14,800", "0.00012"]


def test_a_record_with_a_strange_training_curve_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = ledger_runs.record("dqn__pong__seed1", "dqn", PONG)
    (tmp_path / "one.json").write_text(json.dumps({**raw, "training": [[1, 2]]}))
    assert main(["report", str(tmp_path / "one.json"), "-o", str(tmp_path / "page.html")]) == 2
    assert "is no record of a run" in capsys.readouterr().err
