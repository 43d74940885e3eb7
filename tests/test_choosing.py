"""docs/choosing.md: what it recommends follows from the records, and changes with them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import ledger_runs
from rl_training.ledger.choosing import choosing_page
from rl_training.ledger.costs import Cost, cheapest, cost_of_reaching, count, duration, mean_over_tasks, median_cost
from rl_training.ledger.records import Record
from rl_training.ledger.rows import Tasks, reference_of, rows_of
from rl_training.ledger.statistics import Estimate, Statistics
from rl_training.ledger.suites import Suite, load_suite


def run(name: str, final: float = 1.0, reached: int = 100, seconds: float = 10.0, **more: Any) -> Record:
    """A run of 200 steps whose evaluations jump from 0 to 1 at the step `reached`."""
    raw = ledger_runs.record(name, name.split("__")[0], final=final, wall_time_s=seconds, **more)
    raw["curve"] = [[step, float(step >= reached)] for step in (50, 100, 150, 200)]
    return Record.from_json(raw, source="here")


# Costs


def test_the_cost_of_a_threshold_is_the_first_evaluation_that_reaches_it() -> None:
    # step 150 of 200, of a run of 10 seconds
    assert cost_of_reaching(run("dqn__a__seed1", reached=150), 1.0) == Cost(150, 7.5)
    assert cost_of_reaching(run("dqn__a__seed1", reached=999), 1.0) == Cost(math.inf, math.inf)
    assert cost_of_reaching(run("dqn__a__seed1", reached=150), None) == Cost(200, 10.0)


def test_the_median_run_may_never_reach_it() -> None:
    runs = [run(f"dqn__a__seed{seed}", reached=reached) for seed, reached in enumerate((50, 999, 999), 1)]
    assert median_cost(runs, 1.0).steps == math.inf and median_cost(runs[:1], 1.0).steps == 50


def test_costs_within_a_tenth_are_equal() -> None:
    assert cheapest({"a": 120.0, "b": 100.0, "c": 109.0, "d": math.inf}) == ["b", "c"]
    assert cheapest({"d": math.inf}) == [] and cheapest({}) == []


def test_the_mean_over_tasks_is_geometric() -> None:
    assert mean_over_tasks([10.0, 1_000.0]) == pytest.approx(100.0) and mean_over_tasks([1.0, math.inf]) == math.inf


def test_words_for_numbers() -> None:
    assert [duration(seconds) for seconds in (0.2, 41, 200, 5_400, math.nan)] == ["1 s", "41 s", "3 min", "1.5 h", "nobody took the time"]
    assert [count(steps) for steps in (12_500, 1_000_000)] == ["12.5k", "1M"]


# The page


class Told(Statistics):
    """The middle run, and a difference that is shown where it is there."""

    def iqm(self, scores: Any) -> Estimate:
        return Estimate(*[sorted(scores)[len(scores) // 2]] * 3)

    def iqm_over_tasks(self, scores: Any) -> Estimate:
        return self.iqm([score for task in scores for score in task])

    def improvement(self, ours: Any, theirs: Any) -> Estimate:
        return Estimate(*[float(min(ours) > max(theirs))] * 3)


def tasks(folder: Path, name: str, algos: tuple[str, ...], task: dict[str, Any], records: list[Record]) -> tuple[Suite, Tasks]:
    every = {"total_timesteps": 200, "base": {"env_id": "rl_training/Chain-v0"}, "runs": [{"algo": algo} for algo in algos], **task}
    tasks = [{"name": name, **every} for name in ("A", "B")]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"seeds": [1, 2], "tasks": tasks}))
    suite = load_suite(folder / f"{name}.yaml")
    return suite, rows_of(suite, records)


def both(algo: str, **more: Any) -> list[Record]:
    return [run(f"{algo}__{task}__seed{seed}", **more) for task in ("a", "b") for seed in (1, 2)]


class Unsure(Told):
    """No difference over the tasks is more than its interval."""

    def iqm_over_tasks(self, scores: Any) -> Estimate:
        middle = super().iqm_over_tasks(scores).point
        return Estimate(middle, middle - 0.6, middle + 0.6)


def page(folder: Path, statistics: Statistics | None = None, **changed: dict[str, Any]) -> str:
    """`double_dqn` is the best and slow, `dqn` needs the fewest steps, `ppo` the least time; changed by row."""
    known: dict[str, dict[str, Any]] = {
        "dqn": {"final": 1.0, "reached": 50, "seconds": 40.0},
        "double_dqn": {"final": 2.0, "reached": 100, "seconds": 100.0},
        "ppo": {"final": 1.0, "reached": 200, "seconds": 2.0},
        "r2d2": {"final": 1.0, "seconds": 50.0},
    }
    records = {algo: both(algo, **{**values, **changed.get(algo, {})}) for algo, values in known.items()}
    solved = {"solved": 1.0, "scale": [0.0, 1.0], "reference": "dqn"}
    value_based = [*records["dqn"], *records["double_dqn"]]
    suites = {
        "classic": tasks(folder, "classic", ("dqn", "double_dqn"), solved, value_based),
        "on_policy": tasks(folder, "on_policy", ("ppo",), solved, records["ppo"]),
        "memory": tasks(folder, "memory", ("r2d2", "dqn"), {"solved": 0.9}, [*records["r2d2"], *both("dqn", final=0.0)]),
        "minatar": tasks(folder, "minatar", ("dqn", "double_dqn"), {"reference": "dqn"}, value_based),
        "atari": (load_suite("atari"), ()),
    }
    masked = [run("dqn__taxi__seed1", final=7.0), run("dqn__taxi__unmasked__seed1", final=-9.0, label="unmasked")]
    return choosing_page(suites, masked, statistics or Told())


def answer(text: str, task: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {task}"))


def test_it_recommends_what_the_records_say(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "[`double_dqn`](algorithms/double_dqn.md)" in answer(text, "vectors") and "`dqn` 1" in answer(text, "vectors")
    assert "[`dqn`](algorithms/dqn.md) | 0.05k steps" in answer(text, "steps are expensive")
    assert "[`ppo`](algorithms/ppo.md) | 2 s to the threshold on A, B" in answer(text, "wall time")
    assert "[`r2d2`]" in answer(text, "part of the state") and "4 of 4 final policies solve their task (2 tasks); `dqn` 0 |" in text
    small = answer(text, "small images")
    assert (
        "[`double_dqn`]" in small
        and "best on 2 of 2 games" in small
        and "shown to be better than `dqn` on every game: `double_dqn`" in small
    )
    assert "7 with masks, −9 without" in answer(text, "some actions")
    assert "| `dqn` | 1 (0.05k steps, 10 s) | 1 (0.05k steps, 10 s) |" in text
    assert "## Atari" not in text  # no records


def test_wall_times_within_a_factor_of_two_are_equal(tmp_path: Path) -> None:
    """To the threshold: ppo s · 200/200, dqn 40 s · 50/200 = 10 s. At 19 s dqn is first and ppo as quick, at 21 s it is not."""
    for seconds, both_named in ((19.0, True), (21.0, False)):
        text = page(tmp_path, ppo={"seconds": seconds})
        assert "Wall times within a factor of 2 count as ties." in text
        line = answer(text, "wall time")
        assert "[`dqn`](algorithms/dqn.md)" in line and ("[`ppo`](algorithms/ppo.md)" in line) == both_named


def test_it_changes_its_mind_with_the_records(tmp_path: Path) -> None:
    text = page(tmp_path, double_dqn={"reached": 50, "final": 0.5}, ppo={"seconds": 400.0}, r2d2={"final": 0.0, "reached": 999})
    assert "[`dqn`](algorithms/dqn.md) | IQM of the final policies" in answer(text, "vectors")
    assert "[`dqn`](algorithms/dqn.md), [`double_dqn`](algorithms/double_dqn.md)" in answer(text, "steps are expensive")
    assert "[`dqn`]" in answer(text, "wall time")
    assert "| small images" not in text  # nothing is shown better than the reference
    assert "0 of 4 final policies" in text and "| `r2d2` | 0 (never) | 0 (never) |" in text


def test_of_those_that_cannot_be_told_apart_it_names_the_simplest(tmp_path: Path) -> None:
    """But for those that take more than twice as long as the quickest of them."""
    # 2 ± .6 and 1 ± .6 overlap. To the threshold: double_dqn 100 s · 100/200 = 50 s, dqn 40 s · 50/200 = 10 s.
    text = answer(page(tmp_path, Unsure()), "vectors")
    assert "[`dqn`](algorithms/dqn.md) | IQM" in text
    overlap = "2 that may be the best (the other:"
    assert f"1 [0.4, 1.6]; of {overlap} 2 [1.4, 2.6]), the simplest of the quick ones |" in text
    # dqn 198 s · 50/200 = 49.5 s: as quick; 396 s: 99 s; 404 s: 101 s, more than twice double_dqn's 50 s.
    for seconds, chosen in ((198.0, "dqn"), (396.0, "dqn"), (404.0, "double_dqn")):
        text = answer(page(tmp_path, Unsure(), dqn={"seconds": seconds}), "vectors")
        assert f"[`{chosen}`](algorithms/{chosen}.md) | IQM" in text and overlap in text
        assert text.endswith("), the simplest of the quick ones |" if chosen == "double_dqn" else "), the simplest |")
    apart = answer(page(tmp_path, Unsure(), double_dqn={"final": 9.0}), "vectors")
    assert "[`double_dqn`](algorithms/double_dqn.md)" in apart and "may be" not in apart and "; `dqn` 1 [0.4, 1.6]" in apart


def test_without_records_it_recommends_nothing(tmp_path: Path) -> None:
    empty = {name: tasks(tmp_path, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "memory", "minatar")}
    text = choosing_page({**empty, "atari": (load_suite("atari"), ())}, [], Told())
    assert text.count("##") == 1 and "algorithms/" not in text


def test_a_task_that_nobody_has_run_yet_decides_nothing(tmp_path: Path) -> None:
    """A suite that grows keeps its answer: judged by the tasks with records, until the new one has some."""
    empty = {name: tasks(tmp_path, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "minatar")}
    only_a = [record for record in both("r2d2") if "__a__" in record.name]
    memory = tasks(tmp_path, "memory", ("r2d2",), {"solved": 0.9}, only_a)
    text = choosing_page({**empty, "memory": memory, "atari": (load_suite("atari"), ())}, [], Told())
    assert "2 of 2 final policies solve their task (1 task)" in answer(text, "part of the state") and "|  | A, ≥ 0.9 |\n" in text


def test_who_had_fewer_steps_is_said_where_memory_is_judged(tmp_path: Path) -> None:
    """A row that was run for a tenth of another's steps may solve a task that it "never" solved."""
    records = [*both("r2d2"), *both("dqn", final=0.0, reached=999)]
    for record in records:
        if record.name.startswith("dqn__a"):
            record.config["total_timesteps"] = 50
    empty = {name: tasks(tmp_path, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "minatar")}
    memory = tasks(tmp_path, "memory", ("r2d2", "dqn"), {"solved": 0.9}, records)
    text = choosing_page({**empty, "memory": memory, "atari": (load_suite("atari"), ())}, [], Told())
    assert "4 of 4 final policies solve their task (2 tasks); `dqn` 0, but after fewer steps on 1 task |" in answer(
        text, "part of the state"
    )
    assert "| `dqn` | 0 (never in 0.05k steps) | 0 (never) |" in text


def test_a_longer_budget_is_said(tmp_path: Path) -> None:
    """An algorithm that is best after more steps than the others had may not be better."""
    empty = {name: tasks(tmp_path, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "memory")}
    runs = [{"algo": "dqn"}, {"algo": "double_dqn", "total_timesteps": 400}]
    minatar = tasks(tmp_path, "minatar", (), {"reference": "dqn", "runs": runs}, [*both("dqn"), *both("double_dqn", final=2.0)])
    text = choosing_page({**empty, "minatar": minatar, "atari": (load_suite("atari"), ())}, [], Told())
    assert "with 0.4k steps in 10 s (others 0.2k steps);" in answer(text, "small images")
    assert "(others" not in page(tmp_path)


def atari_runs(name: str, value: float, label: str = "") -> list[Record]:
    """Two seeds of a million steps, whose last training return is the value and the seed."""
    algo, config = name.split("__")
    env_id = f"ALE/{config.removeprefix('atari_').capitalize()}-v5"
    records = []
    for seed in (1, 2):
        stem = f"{name}__{label}__seed{seed}" if label else f"{name}__seed{seed}"
        raw = ledger_runs.record(stem, algo, env_id, wall_time_s=600.0, label=label)
        raw["config"]["total_timesteps"] = 1_000_000
        records.append(Record.from_json({**raw, "training": [[1_000_000, value + seed, 100]]}, source="here"))
    return records


def atari_page(folder: Path, records: list[Record]) -> str:
    suite = load_suite("atari")
    empty = {name: tasks(folder, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "memory", "minatar")}
    return choosing_page({**empty, "atari": (suite, rows_of(suite, records))}, [], Told())


def test_atari_stands_beside_what_was_published(tmp_path: Path) -> None:
    text = atari_page(tmp_path, [*atari_runs("dqn__atari_pong", -9.0), *atari_runs("qr_dqn__atari_pong", 5.0)])
    because = "Pong 6.5 after 1M steps: the highest mean of 2 configs on 1 of 1 games (not tested for chance)"
    assert f"| Atari, a GPU | [`qr_dqn`](algorithms/qr_dqn.md) | {because} |" in text
    assert "| Pong | `dqn` | 1M | −7.5 (2 seeds) | −13.74 (Dopamine: DQN CNN) | 10 min |" in text
    assert "Ours were made on one GPU shared by several runs. " in text and "(CPU)" not in text


def test_of_atari_what_ran_on_a_cpu_is_named(tmp_path: Path) -> None:
    slow = atari_runs("qr_dqn__atari_pong", 5.0)
    for record in slow:
        record.config["device"] = "cpu"
    text = atari_page(tmp_path, [*atari_runs("dqn__atari_pong", -9.0), *slow])
    assert "on one GPU shared by several runs, or on one CPU thread where the wall time says so." in text
    rows = {line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| Pong |")}
    assert rows["`qr_dqn` (3-step, prioritized)"].endswith(" (CPU) |") and "CPU" not in rows["`dqn`"]


def test_of_atari_only_shipped_configs_with_the_most_games_are_recommended(tmp_path: Path) -> None:
    """`qr_dqn` is the highest, on Pong by settings of the suite's own: its config has played Boxing only, `dqn` and `iqn` both."""
    runs = [
        *atari_runs("dqn__atari_pong", 1.0),
        *atari_runs("dqn__atari_boxing", 1.0),
        *atari_runs("iqn__atari_pong", 2.0),
        *atari_runs("iqn__atari_boxing", 2.0),
        *atari_runs("qr_dqn__atari_pong", 20.0, label="nature"),
        *atari_runs("qr_dqn__atari_boxing", 20.0),
    ]
    line = answer(atari_page(tmp_path, runs), "Atari")
    assert (
        "[`iqn`]" in line
        and "Pong 3.5, Boxing 3.5 after 1M steps: the highest mean of 2 configs on 2 of 2 games (not tested for chance)" in line
    )


def test_of_atari_another_config_of_an_algorithm_does_not_lend_it_its_return(tmp_path: Path) -> None:
    """`iqn` with IMPALA's network has played Pong alone: it is told, and is not what `iqn` on Boxing was."""
    runs = [record for algo, pong in (("qr_dqn", 2.0), ("iqn", 1.0)) for record in atari_runs(f"{algo}__atari_pong", pong)]
    runs += [record for algo, boxing in (("qr_dqn", 2.0), ("iqn", 1.0)) for record in atari_runs(f"{algo}__atari_boxing", boxing)]
    impala = atari_runs("iqn__atari_pong_impala", 9.0)
    for record in impala:
        record.config["env_id"] = "ALE/Pong-v5"
    line = answer(atari_page(tmp_path, [*runs, *impala]), "Atari")
    assert "[`qr_dqn`]" in line and "the highest mean of 2 configs on 2 of 2 games (not tested for chance); `iqn` (IMPALA)" in line
    assert "(IMPALA), which has not played them all, 10.5 on Pong" in line


def test_of_atari_only_the_same_games_are_compared(tmp_path: Path) -> None:
    """`dqn` has played Pong and `iqn` Boxing: nothing says which is better."""
    text = atari_page(tmp_path, [*atari_runs("dqn__atari_pong", 1.0), *atari_runs("iqn__atari_boxing", 2.0)])
    assert "## Atari" in text and "| Atari, a GPU" not in text


def test_of_small_images_the_best_on_most_games_is_recommended(tmp_path: Path) -> None:
    """Two rows are shown better than the reference. Where they ran is said: all on a CPU, or some."""
    empty = {name: tasks(tmp_path, name, ("dqn",), {}, []) for name in ("classic", "on_policy", "memory")}
    finals = {"dqn": 1.0, "double_dqn": 2.0, "iqn": 3.0}

    def made(*on_cpu: str, partly: str = "") -> str:
        records = [record for algo, final in finals.items() for record in both(algo, final=final)]
        for at, record in enumerate(records):
            there = record.algorithm in on_cpu or (record.algorithm == partly and at % 2 == 0)
            record.config["device"] = "cpu" if there else "cuda"
        minatar = tasks(tmp_path, "minatar", tuple(finals), {"reference": "dqn"}, records)
        return choosing_page({**empty, "minatar": minatar, "atari": (load_suite("atari"), ())}, [], Told())

    text = made("iqn")
    assert "[`iqn`]" in answer(text, "small images") and "on every game: `double_dqn`, `iqn`" in answer(text, "small images")
    assert "MinAtar. On one GPU shared by several runs, so wall times are rough; `iqn` on one CPU thread.\n" in text
    assert "MinAtar. On one CPU thread.\n" in made(*finals)
    assert "MinAtar. On one GPU shared by several runs, so wall times are rough.\n" in made()
    assert "rough; `iqn` on one CPU thread; `dqn` partly on one CPU thread.\n" in made("iqn", partly="dqn")


def test_a_variant_is_no_reference_where_the_config_itself_is_planned(tmp_path: Path) -> None:
    """Rows are compared with the shipped config of the reference, once it is run; a variant stands in only where there is nothing else."""
    suite = load_suite("atari")
    variant = rows_of(suite, [*atari_runs("dqn__atari_pong", 1.0, label="nature")])
    task, rows = variant[0]
    assert task.reference == "dqn" and reference_of(task, rows) is None
    only = [row for row in rows if row.variant and row.algorithm == "dqn"]
    assert len(only) == 1 and only[0].complete and only[0].planned == 1
    assert reference_of(task, only) is None  # of one seed no spread is known
    two_seeds = [replace(only[0], planned=2)]
    assert not two_seeds[0].complete and reference_of(task, two_seeds) is None
    two_seeds = [replace(two_seeds[0], records=only[0].records + only[0].others)]
    assert two_seeds[0].complete and reference_of(task, two_seeds) is two_seeds[0]
