"""Searching settings: what is refused, that a study is gone on with and repeats nothing, and that the best config is what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import ledger_runs
from rl_training.cli import main
from rl_training.errors import RunError, UserError
from rl_training.experiment.config import load_config, shipped_configs
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import ValueSettings
from rl_training.ledger.records import Record
from rl_training.ledger.runner import Outcome, Work
from rl_training.ledger.suites import Plan
from rl_training.ledger.tune import RATIO, Search, make_search, rounds, space_of, tune
from rl_training.runtime.trainer_setup import planned_updates

BASE: dict[str, Any] = {
    "algo": "dqn",
    "env_id": "rl_training/Chain-v0",
    "seed": 1,
    "total_timesteps": 200,
    "output_dir": "runs",
    "eval_episodes": 1,
    "algo_kwargs": {"learning_starts": 50, "batch_size": 8, "hidden_sizes": [], "buffer_capacity": 500},
}
SPACE = {
    "space": {
        "algo_kwargs.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "algo_kwargs.batch_size": {"low": 4, "high": 16},
        "algo_kwargs.hidden_sizes": {"choices": [[], [8]]},
    }
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER_STARTED", str(tmp_path / "started"))
    Path("base.yaml").write_text(yaml.safe_dump(BASE))
    Path("space.yaml").write_text(yaml.safe_dump(SPACE))
    return tmp_path


def search(**changes: Any) -> Search:
    options: dict[str, Any] = {"seeds": (1001, 1002), "total_timesteps": None, "episodes": 2, "policy": "final", **changes}
    return make_search("base.yaml", Path("space.yaml"), **options)


# Work that trains nothing: the larger the batch, the better.


def prefer_large_batches(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    done = ledger_runs.finish(plan, folder, progress)
    value = float(plan.config.algo_kwargs["batch_size"]) + plan.config.seed / 1_000
    return {**done, "final": ledger_runs.evaluation(value), "best": ledger_runs.evaluation(-value)}


def fail_below_ten(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    if plan.config.algo_kwargs["batch_size"] < 10:
        raise RuntimeError("the loss is nan")
    return prefer_large_batches(plan, folder, progress)


def always_fail(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    raise RuntimeError("no")


def in_this_process(plans: Sequence[Plan], results: Path, *, jobs: int, display: Any, work: Work) -> Outcome:
    """As run_plans, without starting a process for each plan (tests/test_ledger.py does)."""
    outcome = Outcome()
    for plan in plans:
        try:
            outcome.records.append(Record.from_json(work(plan, results, lambda step: None), source=plan.name))
        except RuntimeError as error:
            outcome.failures[plan.name] = f"RuntimeError: {error}"
    return outcome


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.ledger.tune.run_plans", in_this_process)


def run(trials: int, work: Any = prefer_large_batches, jobs: int = 2, found: Search | None = None) -> list[str]:
    return list(tune(found or search(), Path("study.jsonl"), Path("best.yaml"), trials=trials, jobs=jobs, quiet=True, work=work))


@pytest.mark.usefixtures("quick")
def test_a_study_is_gone_on_with_and_the_best_config_is_written() -> None:
    first = run(2)
    assert [line.split(":")[0] for line in first] == ["trial 0", "trial 1", "best of 2"]
    more = run(4)
    assert [line.split(":")[0] for line in more] == ["trial 2", "trial 3", "best of 4"]
    assert [line.split(":")[0] for line in run(4)] == ["best of 4"]  # nothing left to do
    started = Path("started").read_text().split()
    assert len(started) == len(set(started)) == 8  # four trials, two seeds each, none twice
    config = load_config("best.yaml")
    values = {int(line.split("batch_size=")[1].split(",")[0]) for line in first[:2] + more[:2]}
    assert config.algo_kwargs["batch_size"] == max(values)
    # the mean over the seeds: batch size + 1.0015
    assert f": {max(values) + 1.0015:.4g}." in Path("best.yaml").read_text() and "1001, 1002" in Path("best.yaml").read_text()
    assert (config.seed, config.total_timesteps, config.output_dir) == (1, 200, Path("runs"))  # all else is the base's


@pytest.mark.usefixtures("quick")
def test_an_interrupted_search_goes_on_as_it_would_have() -> None:
    whole = run(3)
    Path("study.jsonl").rename("whole.jsonl")
    run(1)
    parts = run(3)
    assert parts == whole[1:]


@pytest.mark.usefixtures("quick")
def test_the_best_checkpoint_can_be_what_counts() -> None:
    lines = run(1, found=search(policy="best"))
    assert lines[0].startswith("trial 0: -")


@pytest.mark.usefixtures("quick")
def test_settings_that_fail_are_a_trial_without_a_value() -> None:
    lines = run(6, fail_below_ten)
    assert 0 < sum("failed (RuntimeError: the loss is nan)" in line for line in lines) < 6
    assert load_config("best.yaml").algo_kwargs["batch_size"] >= 10
    Path("study.jsonl").unlink()
    Path("best.yaml").unlink()
    with pytest.raises(RunError, match="none of 2 trials"):
        run(2, always_fail)
    assert not Path("best.yaml").exists()


@pytest.mark.usefixtures("quick")
def test_settings_that_contradict_each_other_are_one_too() -> None:
    """A burn-in of 10 is valid in the base's sequences of 20, and sequences of 4 with its burn-in of 0; not both."""
    base = {**BASE, "algo": "drqn", "algo_kwargs": {**BASE["algo_kwargs"], "sequence_length": 20}}
    Path("base.yaml").write_text(yaml.safe_dump(base))
    choices = {"algo_kwargs.sequence_length": [4, 20], "algo_kwargs.burn_in": [0, 10]}
    Path("space.yaml").write_text(yaml.safe_dump({"space": {key: {"choices": values} for key, values in choices.items()}}))
    lines = run(8)
    together = [line for line in lines if "burn_in=10, sequence_length=4" in line]
    assert together and all("failed (trial" in line and "burn_in" in line for line in together)
    assert sum("failed" in line for line in lines) == len(together)


@pytest.mark.usefixtures("quick")
def test_a_study_of_another_search_is_not_touched() -> None:
    run(1)
    before = Path("study.jsonl").read_bytes()
    with pytest.raises(UserError, match="holds a study with another seeds"):
        run(2, found=search(seeds=(7, 8)))
    assert Path("study.jsonl").read_bytes() == before
    Path("study.jsonl").write_text("not a study\n")
    with pytest.raises(UserError, match=r"study\.jsonl: cannot be used as a study"):
        run(2)


@pytest.mark.parametrize("row", algorithm_names())
def test_every_row_has_a_space_whose_ends_are_configs(row: str) -> None:
    config = load_config(f"configs/{row}/cartpole.yaml")
    base = yaml.safe_load(config.to_yaml())
    Search("", base, space_of(row).space, (1001,)).check()


VALUE_CONFIGS = [name for name in shipped_configs() if issubclass(get_algorithm_spec(name.split("/")[0]).settings, ValueSettings)]


@pytest.mark.parametrize("name", VALUE_CONFIGS)
def test_a_shipped_space_asks_for_at_most_one_update_a_step(name: str) -> None:
    """A config of 128 updates in rounds of 256 steps would make 32,128 of them in 3,000 steps, if the rounds alone became shorter."""
    config = load_config(name)
    found = Search(name, yaml.safe_load(config.to_yaml()), space_of(config.algo).space, (1001,))
    for ratio in found.space[RATIO].choices:
        (plan,) = found.plans(0, {RATIO: ratio})
        settings = plan.config.settings
        assert isinstance(settings, ValueSettings) and settings.gradient_steps / settings.train_frequency == ratio
        updates = planned_updates(plan.config)
        assert updates is not None and updates <= config.total_timesteps * ratio


@pytest.mark.parametrize(
    ("ratio", "frequency", "expected"),
    [
        (0.5, 256, (256, 128)),
        (0.125, 256, (256, 32)),
        (0.125, 2, (8, 1)),
        (1, 1, (1, 1)),
        (2, 1, (1, 2)),
        (0.3, 4, (4, 1)),
        (0.1, 4, (10, 1)),
    ],
)
def test_the_ratio_decides_both_settings(ratio: float, frequency: int, expected: tuple[int, int]) -> None:
    assert rounds(ratio, frequency) == expected


@pytest.mark.usefixtures("quick")
def test_the_best_config_holds_what_the_ratio_decided() -> None:
    Path("base.yaml").write_text(
        yaml.safe_dump({**BASE, "algo_kwargs": {**BASE["algo_kwargs"], "train_frequency": 8, "gradient_steps": 4}})
    )
    Path("space.yaml").write_text(yaml.safe_dump({"space": {RATIO: {"choices": [0.25]}}}))
    assert "updates_per_step=0.25" in run(1)[0]
    found = yaml.safe_load(Path("best.yaml").read_text())
    assert RATIO not in found and (found["algo_kwargs"]["train_frequency"], found["algo_kwargs"]["gradient_steps"]) == (8, 2)


@pytest.mark.parametrize(
    ("arguments", "space", "message"),
    [
        (["--seeds", "4-7"], SPACE, "4, 5 belong to the suite"),
        (["--seeds", "x"], SPACE, "--seeds x"),
        (["--config", "no.yaml"], SPACE, "no.yaml: no such config"),
        ([], {"space": {"algo_kwargs.batchsize": {"low": 1, "high": 2}}}, "did you mean batch_size?"),
        ([], {"space": {"algo_kwargs.batch_size": {"low": 2, "high": 1}}}, "a low that is below high"),
        ([], {"space": {"algo_kwargs.gamma": {"low": 0, "high": 1, "log": True}}}, "only above 0"),
        ([], {"space": {"algo_kwargs.gamma": {"low": 0, "high": 1, "choices": [1]}}}, "either choices or low and high"),
        ([], {"space": {"algo_kwargs.gamma": {"low": 0.5, "high": 2.0}}}, "2.0 cannot be tried"),
        ([], {"space": {RATIO: {"low": 0.0, "high": 1.0}}}, "0.0 cannot be tried (updates_per_step must be a number above 0"),
        ([], {"space": {RATIO: {"choices": ["much"]}}}, "'much' cannot be tried"),
        ([], {"space": {RATIO: {"low": 1, "high": 2}, "algo_kwargs.gradient_steps": {"low": 1, "high": 2}}}, "search one of them"),
        (["--config", "configs/ppo/cartpole.yaml"], {"space": {RATIO: {"low": 1, "high": 2}}}, "is of rows that learn from replay"),
        (
            ["--config", "configs/dqn/cartpole.yaml"],
            {"space": {"algo_kwargs.train_frequency": {"choices": [1, 2, 4]}}},
            "space: algo_kwargs.train_frequency: the config makes 128 updates a round, however short a round is; search updates_per_step",
        ),
        ([], {"space": {}}, "space.yaml: space"),
        ([], {"spice": {}}, "spice is not a key of a space"),
        ([], [1], "space.yaml: must hold"),
        (["-o", "none/best.yaml"], SPACE, "there is no folder none"),
        (["-o", "."], SPACE, ".: is a folder, not a file to write"),
        (["--study", "."], SPACE, ".: is a folder, not a file to write"),
        (["--total-timesteps", "0"], SPACE, "total_timesteps must be >= 1"),
    ],
)
def test_bad_input(arguments: list[str], space: Any, message: str, capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("space.yaml").write_text(yaml.safe_dump(space))
    before = set(here.rglob("*"))
    config = [] if "--config" in arguments else ["--config", "base.yaml"]
    code = main(["tune", *config, "--space", "space.yaml", *arguments])
    out, err = capsys.readouterr()
    assert code == 2 and message in err and len(err.splitlines()) == 1 and out == ""
    assert set(here.rglob("*")) == before


def test_from_the_command_line_with_real_training(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"--config": "base.yaml", "--space": "space.yaml", "--trials": "1", "--seeds": "1001", "--jobs": "1", "--episodes": "2"}
    Path("tells.py").write_text("import os\nwith open('imported', 'a') as file:\n    file.write(f'{os.getpid()}\\n')\n")
    code = main(["--import", "tells", "tune", *(part for pair in options.items() for part in pair), "-o", "found it.yaml"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "best of 1: trial 0" in out and "[1/1] trial0__dqn__seed1001" in err
    assert len(set(Path("imported").read_text().split())) == 2  # here and in the trial's process
    assert out.endswith("next:\n  rl-training --import tells train --config 'found it.yaml' --seeds 1-5\n")
    assert load_config("found it.yaml").algo == "dqn" and Path("tune.jsonl").exists()
