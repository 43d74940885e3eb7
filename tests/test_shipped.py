"""Shipped configs by name, by row and environment, and as a list that says what they reached."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl_training
from command_line import Cli
from rl_training.api.managed import _CLASSES
from rl_training.experiment import shipped
from rl_training.experiment.config import find_config, load_config
from rl_training.experiment.registry import algorithm_names
from rl_training.experiment.runs import RunDirectory
from rl_training.experiment.shipped import SHIPPED_CONFIGS, describe_shipped, reached, shipped_for
from rl_training.ledger.text import reached_text

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("row", algorithm_names())
def test_the_config_of_a_row_and_an_environment_is_one_without_keywords(row: str) -> None:
    found = shipped_for(row, "CartPole-v1")
    if found is None:
        assert not [each for each in describe_shipped(row) if each.env_id == "CartPole-v1" and not each.env_kwargs]
        return
    config = load_config(found)
    assert (config.algo, config.env_id, config.env_kwargs) == (row, "CartPole-v1", {})
    assert getattr(rl_training, _CLASSES[row]).from_config(found).config == config


def test_an_environment_that_is_only_shipped_with_keywords_has_none() -> None:
    assert shipped_for("dqn", "rl_training/TMaze-v0") is None and shipped_for("dqn", "Nothing-v0") is None


def test_a_config_whose_episodes_restart_on_resume_says_so() -> None:
    texts = {file: file.read_text() for file in SHIPPED_CONFIGS.rglob("*.yaml")}
    native = [file for file, text in texts.items() if yaml.safe_load(text).get("vectorization") == "native"]
    assert native and not [file for file in native if "episodes under way restart on resume" not in texts[file]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shipped configs of our own, and what they reached."""
    configs = tmp_path / "shipped"
    monkeypatch.setattr(shipped, "SHIPPED_CONFIGS", configs)
    monkeypatch.setattr(shipped, "REACHED", tmp_path / "reached.json")
    base = {"algo": "dqn", "seed": 5, "total_timesteps": 60, "output_dir": "runs"}
    small = {"learning_starts": 10, "batch_size": 4, "hidden_sizes": [8], "buffer_capacity": 100}
    for name, values in {
        "dqn/a_wrapped": {"env_id": "CartPole-v1", "env_kwargs": {"wrappers": ["flatten"]}, "algo_kwargs": small},
        "dqn/b_plain": {"env_id": "CartPole-v1", "algo_kwargs": {**small, "gamma": 0.5}},
        "double_dqn/other": {"algo": "double_dqn", "env_id": "Acrobot-v1", "env_kwargs": None},
    }.items():
        file = configs / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump({**base, **values}))
    (tmp_path / "reached.json").write_text(json.dumps({"dqn/b_plain": {"task": "My task", "mean": 1.5, "low": 1, "high": 2, "seeds": 3}}))
    return configs


def test_train_takes_a_row_and_an_environment(folder: Path, cli: Cli) -> None:
    done = cli("train", "dqn", "--env", "CartPole-v1", "--set", "algo_kwargs.batch_size=6")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == f"config: {folder / 'dqn' / 'b_plain.yaml'} (shipped for dqn on CartPole-v1)"
    (run,) = Path("runs").iterdir()
    config = RunDirectory.held(run).config
    assert (config.seed, config.settings.gamma, config.settings.batch_size) == (5, 0.5, 6)  # type: ignore[attr-defined]
    small = ["--set", "algo_kwargs.hidden_sizes=[8]", "--total-timesteps", "30", "--output-dir", "others"]
    done = cli("train", "double_dqn", "--env", "CartPole-v1", *small)
    assert done.code == 0 and done.out.splitlines()[0] == "config: the defaults of double_dqn (none is shipped for CartPole-v1)"
    (folder / "dqn" / "b_plain.yaml").unlink()
    done = cli("train", "dqn", "--env", "CartPole-v1", *small)
    said = "config: the defaults of dqn (none is shipped for CartPole-v1 without env_kwargs; with them: dqn/a_wrapped)"
    assert done.code == 0 and done.out.splitlines()[0] == said


def test_runs_side_by_side_are_told_the_same(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[int, list[str]] = {}
    monkeypatch.setattr("rl_training.commands.train._train_side_by_side", lambda commands, config, jobs, quiet: told.update(commands))
    assert cli("train", "dqn", "--env", "CartPole-v1", "--seeds", "1,2", "--jobs", "2").code == 0
    assert told[2] == ["train", "dqn", "--env=CartPole-v1", "--seed=2", "--quiet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dqn"], "error: --env is missing: the environment, such as CartPole-v1"),
        (["--env", "CartPole-v1"], "error: what to train is missing"),
        ([], "error: what to train is missing (train dqn --env CartPole-v1, or train --config dqn/cartpole)"),
        (["dqnn", "--env", "CartPole-v1"], "error: algo 'dqnn' is unknown; did you mean dqn?"),
        (["dqn", "--config", "small.yaml"], "error: --config and dqn: give a config, or an algorithm and --env"),
        (["dqn", "--env", "CartPol-v1"], "error: no environment is registered as 'CartPol-v1'; did you mean CartPole-v1?"),
        (["iqn", "--env", "X-v0", "--set", "gamma=1"], "error: --set gamma=1: gamma is not a key of a config"),
    ],
)
def test_what_cannot_be_trained_is_said(words: list[str], message: str, cli: Cli) -> None:
    assert cli.refused("train", *words).startswith(message)


def test_the_list_is_a_table_by_task_the_best_first(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("configs").out.splitlines()
    assert lines[0].split() == ["config", "steps", "reached"]
    tasks = [line for line in lines[2:] if line and not line.startswith(" ")]
    assert tasks[:3] == ["Acrobot-v1", "CartPole-v1", "My task"]
    at = lines.index("My task")
    assert lines[at + 1].split() == ["dqn/b_plain", "60", "1.5", "[1,", "2]"]
    assert lines[lines.index("CartPole-v1") + 1].split() == ["dqn/a_wrapped", "60", "not", "measured"]


@pytest.mark.parametrize("columns", [80, 120])
def test_every_shipped_config_fits_a_line(columns: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cli("configs").out.splitlines()
    names = [line.split()[0] for line in lines if re.match(r"  \w+/\w+ ", line)]
    assert sorted(names) == [each.name for each in describe_shipped()]
    assert max(len(line) for line in lines if line.startswith("  ")) <= columns
    by_task = [block.splitlines() for block in "\n".join(lines).split("\n\n")]
    cartpole = next(block for block in by_task if block[0] == "CartPole-v1")
    means = [reached()[name]["mean"] for line in cartpole[1:] if (name := line.split()[0]) in reached()]
    assert means == sorted(means, reverse=True)


def test_a_single_seed_has_no_interval() -> None:
    assert reached_text({"mean": 19.6, "low": 19.6, "high": 19.6, "seeds": 1}) == "19.6 (1 seed)"
    assert reached_text({"mean": 19.6, "low": 19.6, "high": 19.6, "seeds": 1, "planned": 2}) == "19.6 (1 of 2 seeds)"
    assert reached_text({"mean": 500.0, "low": 493.1, "high": 500.0, "seeds": 5}) == "500 [493.1, 500]"


def test_what_was_reached_is_of_configs_that_are_there() -> None:
    found = reached()
    assert found and set(found) <= {each.name for each in describe_shipped()}
    assert all(
        find_config(name).is_relative_to(SHIPPED_CONFIGS) and each["low"] <= each["mean"] <= each["high"] for name, each in found.items()
    )


@pytest.mark.slow
def test_the_readme_keeps_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its Python block, run as it stands, prints the number that stands beside it."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    promised = [float(number) for number in re.findall(r"print\(.*\)  # (\d+)", block)]
    namespace: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), namespace)
    assert [float(line) for line in capsys.readouterr().out.split()] == promised and promised
    assert (tmp_path / "my_agent").is_dir()
