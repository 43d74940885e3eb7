"""docs/results.md, the README's numbers and the statistics behind them: made from records, claiming nothing that an interval denies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import ledger_runs
from benchmarks.publish import RESULTS, ROOT, STATISTICS
from rl_training.errors import UserError
from rl_training.experiment.registry import algorithm_names
from rl_training.ledger.publish import PUBLISHED, overview, publish, reached_by_configs, results_page, rows_of
from rl_training.ledger.readme import BEGIN, END, learned, speed, spliced
from rl_training.ledger.records import Record, read_records
from rl_training.ledger.statistics import Estimate, Statistics, bootstrap_improvement, bootstrap_iqm, bootstrap_profile
from rl_training.ledger.suites import load_suite, plan_groups

if not RESULTS.is_dir():
    pytest.skip("the records are in the repository, not in the source distribution", allow_module_level=True)


def test_the_published_tables_are_what_the_records_say() -> None:
    """Fails when a record, a suite or a table changed without the others: `make results` writes them all."""
    try:
        pages = publish(ROOT, STATISTICS, RESULTS, frozen=True)
    except KeyError as missing:
        pytest.fail(f"the statistics are of other records ({missing}): make results")
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not what the records say: make results"


def test_every_row_stands_in_a_published_suite() -> None:
    published = {group.algorithm for name in PUBLISHED for group in plan_groups(load_suite(name))}
    assert published == set(algorithm_names())


def test_the_stored_statistics_are_those_of_their_scores() -> None:
    """One of them recomputed: the file is a memory, not a place to write numbers into."""
    stored = json.loads(STATISTICS.read_text())
    key = next(key for key in stored if key.startswith("iqm") and stored[key][1] < stored[key][2])
    assert bootstrap_iqm(json.loads(key.partition(" ")[2])) == pytest.approx(stored[key])


@pytest.mark.parametrize(("change", "counts"), [({"eval_interval": 7_000}, True), ({"algo_kwargs.gamma": 0.5}, False)])
def test_a_config_reached_what_runs_trained_as_it_says_did(tmp_path: Path, change: dict[str, Any], counts: bool) -> None:
    """How often a run was looked at does not count; how it was trained does."""
    file = tmp_path / "one.yaml"
    run = {"config": "configs/dqn/cartpole.yaml", "set": change}
    file.write_text(
        yaml.safe_dump({"description": "", "seeds": [1], "tasks": [{"name": "CartPole", "total_timesteps": 50_000, "runs": [run]}]})
    )
    suite = load_suite(str(file))
    (group,) = plan_groups(suite)
    raw = ledger_runs.record(group.plans[0].name, best=9.0, config=json.loads(json.dumps(group.plans[0].config.to_dict())))
    reached = json.loads(reached_by_configs([suite], [Record.from_json(raw, source="here")], Statistics()))
    assert reached == ({"dqn/cartpole": {"task": "CartPole", "mean": 9.0, "low": 9.0, "high": 9.0, "seeds": 1}} if counts else {})

    # where another seed is still to be run, it says how many there will be
    longer = suite.model_copy(update={"seeds": (1, 2)})
    waiting = json.loads(reached_by_configs([longer], [Record.from_json(raw, source="here")], Statistics()))
    assert [(found["seeds"], found["planned"]) for found in waiting.values()] == ([(1, 2)] if counts else [])


# Statistics


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    # 1, 2, 3, 4, 100: a quarter of 5 runs is one on each side; (2 + 3 + 4)/3
    point, low, high = bootstrap_iqm([[1.0, 2.0, 3.0, 4.0, 100.0]])
    assert point == pytest.approx(3.0)
    assert 1 <= low < 3 < high <= 100
    assert bootstrap_iqm([[7.0] * 5]) == [7.0, 7.0, 7.0]


def test_the_probability_of_improvement_counts_ties_half() -> None:
    # 2 beats 1 and ties 2; 3 beats both: (1 + ½ + 1 + 1)/4
    assert bootstrap_improvement([2.0, 3.0], [1.0, 2.0])[0] == pytest.approx(0.875)
    assert bootstrap_improvement([5.0] * 5, [1.0] * 5) == [1.0, 1.0, 1.0]


def test_the_profile_is_the_share_of_runs_at_each_level() -> None:
    # two tasks, two runs: 0.2, 0.5, 0.8, 1.0 against levels ¼, ½, ¾, 0.9, 1
    shares = bootstrap_profile([[0.2, 0.5], [0.8, 1.0]])[::3]
    assert shares == pytest.approx([0.75, 0.75, 0.5, 0.25, 0.25])


def test_statistics_are_computed_once_and_only_those_in_use_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "statistics.json"
    first = Statistics({"iqm [[9.0]]": [9.0, 9.0, 9.0]})
    estimate = first.iqm([1.0, 2.0])
    first.save(file)
    assert list(json.loads(file.read_text())) == ["iqm [[1.0, 2.0]]"]
    monkeypatch.setattr("rl_training.ledger.statistics.bootstrap_iqm", lambda scores: pytest.fail("computed again"))
    assert Statistics.load(file).iqm([1.0, 2.0]) == estimate
    with pytest.raises(KeyError):
        Statistics.load(file, frozen=True).iqm([1.0, 3.0])
    assert Statistics.load(tmp_path / "none.json", frozen=True) is not None
    file.write_text("[1")
    with pytest.raises(UserError, match=r"statistics\.json"):
        Statistics.load(file)


def test_tasks_need_the_same_number_of_runs() -> None:
    with pytest.raises(UserError, match=r"\[2, 1\]"):
        bootstrap_iqm([[1.0, 2.0], [1.0]])


# The page, on a suite of three rows and five seeds


class Told(Statistics):
    """Exact arithmetic in place of bootstraps: intervals are given, not computed."""

    def __init__(self, improvement: Estimate) -> None:
        super().__init__()
        self._improvement = improvement

    def iqm(self, scores: Any) -> Estimate:
        middle = sorted(scores)[len(scores) // 2]
        return Estimate(middle, middle - 1, middle + 1)

    def improvement(self, ours: Any, theirs: Any) -> Estimate:
        return self._improvement


NO_DIFFERENCE = Estimate(0.5, 0.4, 0.6)


def page(
    tmp_path: Path, records: list[dict[str, Any]], improvement: Estimate = NO_DIFFERENCE, seeds: tuple[int, ...] = (1, 2, 3)
) -> tuple[str, str]:
    known = {"about": "Chance is 0.", "anchors": {"dqn": 0.9}, "anchor_source": "somebody", "reference": "dqn"}
    task = {**ledger_runs.SUITE["tasks"][0], **known, "peers": ["sb3_dqn"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"seeds": list(seeds), "description": "Mine.", "tasks": [task]}))
    suite = load_suite(tmp_path / "mine.yaml")
    suites = [(suite, rows_of(suite, [Record.from_json(raw, source="here") for raw in records]))]
    statistics = Told(improvement)
    return "\n".join(results_page(suites, statistics)), overview(suites, statistics)


def runs(name: str, *finals: float, first: int = 1, **more: Any) -> list[dict[str, Any]]:
    algo = name.split("__")[0]
    return [ledger_runs.record(f"{name}__seed{seed}", algo, final=final, best=1.0, **more) for seed, final in enumerate(finals, first)]


def test_a_row_below_its_anchor_says_so_and_one_without_runs_too(tmp_path: Path) -> None:
    text, table = page(tmp_path, runs("dqn__chain", 0.1, 0.5, 0.7))
    assert "| `dqn` | 1 [0, 2] | 0.5 [−0.5, 1.5] | 1, 1, 1 | 0.1, 0.5, 0.7 | 3/3, 0/3 | 0.9 | reference |" in text
    assert "- `dqn` is **below its anchor** 0.9: final 0.5." in text and "Anchors: somebody." in text
    assert "### Chain, 200 steps\n\nChance is 0.\n\n|" in text
    assert "| `double_dqn` | not measured yet |" in text and "| `sb3_dqn` | not measured yet |" in text
    assert "| `dqn` | 1 [0, 2] |" in table and "double_dqn" not in table


def test_nothing_is_compared_with_a_single_run(tmp_path: Path) -> None:
    for finals, compared in (((0.1,), False), ((0.1, 0.1), True)):
        records = [*runs("dqn__chain", *finals), *runs("double_dqn__chain", *finals)]
        text, _ = page(tmp_path, records, Estimate(1.0, 1.0, 1.0), seeds=tuple(range(1, len(finals) + 1)))
        assert ("P(better than `dqn`)" in text.partition("## mine")[2]) is compared


def test_a_best_checkpoint_below_a_final_policy_says_how_many_it_was_the_first_of(tmp_path: Path) -> None:
    """Evaluations of ten episodes tie, and the first is taken."""
    records = runs("dqn__chain", 1.0, 1.0, 1.0)
    for raw, curve in zip(records, ([1, 1, 0], [1, 1, 1], [0, 1, 1]), strict=True):
        raw["best"]["eval_return_mean"], raw["config"]["eval_episodes"] = 0.5, 10
        raw["curve"] = [[step, value] for step, value in enumerate(curve, 1)]
    text, _ = page(tmp_path, records)
    assert "0.9: best 0.5. A run's best checkpoint is the first of 2 to 3 that tie on their mean over 10 episodes." in text
    records[0]["curve"] = [[1, 0.0], [2, 1.0]]  # nothing to confuse it with
    assert "best 0.5.\n" in page(tmp_path, records)[0]


@pytest.mark.parametrize(
    ("improvement", "words"),
    [
        (Estimate(0.9, 0.51, 1.0), "0.90 [0.51, 1.00] **better**"),
        (Estimate(0.9, 0.50, 1.0), "0.90 [0.50, 1.00] no difference shown"),
        (Estimate(0.1, 0.0, 0.5), "0.10 [0.00, 0.50] no difference shown"),
        (Estimate(0.1, 0.0, 0.49), "0.10 [0.00, 0.49] **worse**"),
    ],
)
def test_better_is_written_only_where_the_interval_says_so(tmp_path: Path, improvement: Estimate, words: str) -> None:
    text, _ = page(tmp_path, [*runs("dqn__chain", 1, 1, 1), *runs("double_dqn__chain", 1, 1, 1)], improvement)
    assert words in text
    assert text.count("**better**") + text.count("**worse**") == ("no difference" not in words)


def test_what_was_made_otherwise_or_is_not_complete_is_said(tmp_path: Path) -> None:
    records = [*runs("dqn__chain", 1, 1), *runs("dqn__chain", 0.25, first=9), *runs("sb3_dqn__chain", 1, 1, 1, algorithm="sb3:dqn")]
    for raw in records[:2]:
        raw["config"]["total_timesteps"] = 300
    text, table = page(tmp_path, records)
    assert "`dqn` has 2 of 3 seeds so far." in text and "`dqn` was run for 300 steps, not 200." in text
    assert re.search(r"before its config changed in .*`algo_kwargs.gamma`", text)  # the records of these tests have 0.9
    assert "`dqn` with other seeds: seed 9 best 1, final 0.25." in text
    assert "P(better than" not in text  # the reference is not complete
    assert "| `dqn` | 1 [0, 2] (300 steps, 2 of 3 seeds) |" in table  # under a head that says 200
    assert "`sb3:dqn`" in table


def test_runs_of_uncommitted_changes_stand_beside_their_commit(tmp_path: Path) -> None:
    records = runs("dqn__chain", 1, 1, 1)
    for raw, dirty in zip(records, (True, False, False), strict=True):
        raw["git"] = {"commit": "c" * 40, "dirty": dirty}
    text, _ = page(tmp_path, records)
    assert re.findall(r"`c{7}`(.*) \| (\d) \|", text) == [("", "2"), (" + changes", "1")]
    assert "*+ changes*: files of the working tree" in text
    for raw in records:  # as older records have it
        raw |= {"git": {"commit": "c" * 40}, "machine": {**raw.get("machine", {}), "uncommitted_changes": True}}
    assert "`ccccccc` + changes | 3 |" in page(tmp_path, records)[0]
    for raw in records:
        raw |= {"git": {"commit": "c" * 40, "dirty": False}}
    clean, _ = page(tmp_path, records)
    assert "changes*" not in clean


def test_the_readme_says_what_is_complete_and_nothing_else(tmp_path: Path) -> None:
    task = {**ledger_runs.SUITE["tasks"][0], "name": "CartPole-v1", "total_timesteps": 50_000}
    (tmp_path / "classic.yaml").write_text(yaml.safe_dump({"seeds": [1, 2, 3], "description": "Mine.", "tasks": [task]}))
    suite = load_suite(tmp_path / "classic.yaml")

    def said(records: list[dict[str, Any]]) -> list[str]:
        return list(learned([(suite, rows_of(suite, [Record.from_json(raw, source="here") for raw in records]))], Told(NO_DIFFERENCE)))

    name = plan_groups(suite)[0].name
    assert said(runs(name, 1, 1)) == []  # a seed is missing
    (line,) = said(runs(name, 1, 1, 1))
    assert line.startswith("- **1 [0, 2]** is DQN's return on CartPole-v1 after 50k steps: the interquartile mean of 3 seeds'")
    record = tmp_path / "throughput.json"
    assert list(speed(record)) == []
    record.write_text(json.dumps({"results": [{"ratios": {"ours": 2.04, "ours, compiled": 5.37}}, {"ratios": {"ours": 9.0}}]}))
    assert [line.partition(" is the speed")[0] for line in speed(record)] == ["- **2.0×** (5.4× compiled)"]


def test_the_readme_keeps_its_words_around_the_table(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert spliced(file, "| new |") == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    file.write_text("nothing")
    with pytest.raises(UserError, match="once each"):
        spliced(file, "")


def test_every_record_of_the_repository_can_be_read() -> None:
    records = read_records(RESULTS)
    assert records and all(record.curve for record in records)
    few = {record.group for record in records if record.best["eval_episodes"] < 100}
    assert all("__atari_" in group for group in few)  # a game takes minutes: ten of them


def test_what_a_config_adds_to_its_row_stands_beside_it() -> None:
    tasks = {task.name: {row.title: row.label for row in rows} for task, rows in rows_of(load_suite("classic"), [])}
    assert tasks["CartPole-v1"]["`dqn`"] == "`dqn` (5-step)" and tasks["Acrobot-v1"]["`dqn`"] == "`dqn`"
    assert tasks["CartPole-v1"]["`drqn`"] == "`drqn` (5-step, double)"
    raw = ledger_runs.record("dqn__cartpole__seed1")
    raw["config"]["algo_kwargs"] = {"n_step": 3, "prioritized": True}  # what was measured, whatever the config says today
    made = {row.title: row.label for row in rows_of(load_suite("classic"), [Record.from_json(raw, source="")])[0][1]}
    assert made["`dqn`"] == "`dqn` (3-step, prioritized)"
    # What is in the name already is not said again.
    assert tasks["CartPole-v1"]["`n_step_dqn`"] == "`n_step_dqn`" and tasks["CartPole-v1"]["`rainbow_dqn`"] == "`rainbow_dqn`"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "\n| `dqn` (5-step) | " in page
    assert re.search(r"\n\| `dqn` \| [^|]* \(5-step\) \|", page)  # at a glance
