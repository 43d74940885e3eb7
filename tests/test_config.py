"""Configs: YAML as people write it, overrides, the lookup of shipped files, and refusals that name key, file and nearest key."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    SHIPPED_CONFIGS,
    Override,
    TrainConfig,
    callable_env_id,
    find_config,
    load_config,
    parse_override,
    shipped_configs,
)

BASE: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 100, "output_dir": "runs"}


def config_file(folder: Path, text: str = "", **values: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(text or yaml.safe_dump({**BASE, **values}))
    return path


def refusal(call: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# TrainConfig


def test_defaults() -> None:
    config = TrainConfig(**BASE)
    assert (config.device, config.num_envs, config.vectorization, config.compile, config.threads) == ("auto", 1, "auto", "auto", "auto")
    assert (config.eval_episodes, config.tags, config.algo_kwargs, config.env_kwargs) == (5, (), {}, {})
    assert config.checkpoint_replay is True
    assert config.horizon == config.total_timesteps == 100


def test_schedules_may_run_over_another_total() -> None:
    assert TrainConfig(**BASE, schedule_timesteps=50).horizon == 50


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"seed": "1"}, "seed must be an integer, got '1'"),
        ({"total_timesteps": 0}, "total_timesteps must be >= 1, got 0"),
        ({"total_timesteps": 5e4}, "total_timesteps must be an integer, got 50000.0; write 50000"),
        ({"num_envs": 0}, "num_envs must be >= 1, got 0"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda, cuda:<number> or mps, got 'gpu'"),
        ({"threads": 0}, "threads must be auto or an integer >= 1, got 0"),
        ({"threads": True}, "threads must be auto or an integer >= 1, got True"),
        ({"compile": "on"}, "compile must be auto, true or false, got 'on'"),
        ({"vectorization": "asink"}, "vectorization must be one of 'auto', 'sync', 'async' or 'native', got 'asink'"),
        ({"tags": "abc"}, "tags must be a list, got 'abc'"),
        ({"env_kwargs": [1]}, "env_kwargs must be a mapping, got [1]"),
        ({"env_kwargs": {1: 2}}, "env_kwargs.1 must have text for its key"),
        ({"algo": "dqnn"}, "algo 'dqnn' is unknown; did you mean dqn?"),
        ({"algo": 3}, "algo must be text, got 3"),
        ({"output_dir": 3}, "output_dir must be text, got 3"),
        ({"sede": 3}, "sede is not a key of a config; did you mean seed?"),
        ({"learning_rate": 3}, "learning_rate is not a key of a config; did you mean algo_kwargs.learning_rate?"),
        ({"zzz": 3}, "zzz is not a key of a config"),
        ({"algo_kwargs": {"batchsize": 3}}, "algo_kwargs.batchsize is not a key of dqn; did you mean batch_size?"),
        ({"algo_kwargs": {"v_min": 3.0}}, "algo_kwargs.v_min needs head: categorical"),
        ({"algo_kwargs": {"hidden_sizes": [1, "a"]}}, "algo_kwargs.hidden_sizes.1 must be an integer, got 'a'"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], message: str) -> None:
    assert refusal(lambda: TrainConfig(**{**BASE, **values})) == message


def test_missing_keys_are_counted() -> None:
    assert refusal(lambda: TrainConfig(algo="dqn")) == "env_id is missing (and 3 more)"  # type: ignore[call-arg]  # what is tested


def test_what_cannot_be_saved_with_the_run_is_refused() -> None:
    message = refusal(lambda: TrainConfig(**BASE, env_kwargs={"a": {"b": object()}}))
    assert message.startswith("env_kwargs.a.b must be a number, text, list or mapping")


def test_numbers_of_numpy_and_tuples_become_plain() -> None:
    config = TrainConfig(**BASE, env_kwargs={"x": np.float64(0.5), "n": np.int64(3), "shape": (1, 2)})
    assert config.env_kwargs == {"x": 0.5, "n": 3, "shape": [1, 2]}
    assert [type(value) for value in config.env_kwargs.values()] == [float, int, list]


def test_a_path_is_text(tmp_path: Path) -> None:
    for given in (tmp_path, str(tmp_path)):
        config = TrainConfig(**{**BASE, "output_dir": given})
        assert config.output_dir == tmp_path and isinstance(config.output_dir, Path)
        assert config.to_dict()["output_dir"] == yaml.safe_load(config.to_yaml())["output_dir"] == str(tmp_path)
        assert config.replace(seed=1).output_dir == tmp_path


def test_replace_checks_again() -> None:
    config = TrainConfig(**BASE)
    assert config.replace(seed=5).seed == 5
    assert refusal(lambda: config.replace(seed=-5)) == "seed must be >= 0, got -5"
    assert config.replace(algo_kwargs={"batch_size": 8}).settings.to_dict()["batch_size"] == 8


def test_copies_keep_their_settings() -> None:
    config = TrainConfig(**BASE, algo_kwargs={"batch_size": 8})
    assert copy.deepcopy(config).settings == config.settings
    assert pickle.loads(pickle.dumps(config)).settings == config.settings


def test_callable_environments_are_marked() -> None:
    env_id = callable_env_id(test_defaults)
    assert env_id == "callable:test_defaults"
    assert TrainConfig(**{**BASE, "env_id": env_id}).env_is_callable
    assert not TrainConfig(**BASE).env_is_callable


# Files


def test_a_saved_config_loads_to_the_same(tmp_path: Path) -> None:
    config = TrainConfig(
        **BASE,
        tags=("a", "ü"),
        algo_kwargs={"learning_rate": 1e-7, "hidden_sizes": (8,), "prioritized": True},
        env_kwargs={"wrappers": [{"keep": {"indices": [0, 2]}}]},
        threads=2,
    )
    config.save(tmp_path / "saved.yaml")
    loaded = load_config(tmp_path / "saved.yaml")
    assert loaded.to_dict() == config.to_dict()
    assert loaded.settings == config.settings
    assert loaded.to_dict()["algo_kwargs"]["prioritized_alpha"] == 0.6  # resolved: what was not said is said


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = config_file(
        tmp_path,
        "algo: dqn\nenv_id: CartPole-v1\nseed: 1\ntotal_timesteps: 50_000\noutput_dir: runs\n"
        "algo_kwargs: {learning_rate: 1e-3, adam_eps: 1.5E-8, gamma: 1, tau: 5e-1}\nenv_kwargs: {name: 1e-3x, negative: -2e2}\n",
    )
    config = load_config(path)
    assert config.total_timesteps == 50_000
    assert config.algo_kwargs == {"learning_rate": 0.001, "adam_eps": 1.5e-8, "gamma": 1, "tau": 0.5}
    assert config.env_kwargs == {"name": "1e-3x", "negative": -200.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo: dqn\nalgo: dqn\n", "line 2, column 1: algo is given twice"),
        ("algo: dqn\nalgo_kwargs:\n  gamma: 1\n  gamma: 1\n", "line 4, column 3: gamma is given twice"),
        ("algo: [1, 2\n", "line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("algo: dqn\n\tseed: 1\n", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("algo: !!python/object/apply:os.system [ls]\n", "line 1, column 7: could not determine a constructor for the tag"),
        ("", "must hold keys and values"),
        ("- algo\n", "must hold keys and values"),
        ("just text", "must hold keys and values"),
        ("1: 2\n", "1 is not a key of a config"),
        ("seed: 2024-99-99\n", "month must be in 1..12"),
        ("a\x00b", "not text YAML can hold"),
        ("[" * 5000, "maximum recursion depth exceeded"),
        ("{env_kwargs: &loop {a: *loop}, algo: dqn, env_id: x, seed: 1, total_timesteps: 1, output_dir: x}", "is nested too deeply"),
    ],
)
def test_broken_yaml_is_placed(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    found = refusal(lambda: load_config(path))
    assert found.startswith(f"{path}: ")
    assert message in found


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    assert refusal(lambda: load_config(path)).startswith(f"{path}: cannot be read")


def test_an_error_names_the_file_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_file(tmp_path, algo_kwargs={"batchsize": 64})
    monkeypatch.chdir(tmp_path)
    assert refusal(lambda: load_config("config.yaml")) == "config.yaml: algo_kwargs.batchsize is not a key of dqn; did you mean batch_size?"


def test_an_empty_mapping_may_be_left_empty(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, "algo: dqn\nenv_id: CartPole-v1\nseed: 1\ntotal_timesteps: 5\noutput_dir: runs\nalgo_kwargs:\nenv_kwargs:\n"
    )
    assert load_config(path).algo_kwargs == {}


# Overrides


def test_overrides_reach_every_key(tmp_path: Path) -> None:
    path = config_file(tmp_path, algo_kwargs={"batch_size": 32, "gamma": 0.9})
    config = load_config(
        path,
        [
            "algo_kwargs.batch_size=64",
            "algo_kwargs.hidden_sizes=[8, 8]",
            "algo_kwargs.learning_rate=1e-4",
            "env_kwargs.a.b=x=y",
            "tags=[one]",
            Override("seed", 7, "--seed 7"),
        ],
    )
    assert config.algo_kwargs == {"batch_size": 64, "gamma": 0.9, "hidden_sizes": [8, 8], "learning_rate": 0.0001}
    assert config.env_kwargs == {"a": {"b": "x=y"}}
    assert (config.seed, config.tags) == (7, ("one",))


@pytest.mark.parametrize("text", ["batch_size", "=3", "a.=3", ".a=3", "a..b=3", "a=", "a= ", ""])
def test_an_override_must_be_key_and_value(text: str) -> None:
    assert refusal(lambda: parse_override(text)) == f"--set {text}: must be KEY=VALUE, such as algo_kwargs.batch_size=64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo_kwargs.batchsize=64", "--set algo_kwargs.batchsize=64: algo_kwargs.batchsize is not a key of dqn; did you mean batch_size?"),
        ("algo_kwargs.batch_size=x", "--set algo_kwargs.batch_size=x: algo_kwargs.batch_size must be an integer, got 'x'"),
        ("algo_kwargs=3", "--set algo_kwargs=3: algo_kwargs must be a mapping, got 3"),
        ("seed.x=3", "--set seed.x=3: seed holds no keys"),
        ("sed=3", "--set sed=3: sed is not a key of a config; did you mean seed?"),
        ("algo_kwargs.tau=[1", "--set algo_kwargs.tau=[1: line 1, column 3: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_a_bad_override_says_that_it_was_the_override(tmp_path: Path, text: str, message: str) -> None:
    path = config_file(tmp_path)
    assert refusal(lambda: load_config(path, [text])) == message


# Lookup


def test_a_local_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_config("configs/dqn/cartpole.yaml")
    assert shipped == find_config("dqn/cartpole.yaml") == SHIPPED_CONFIGS / "dqn" / "cartpole.yaml"
    local = tmp_path / "configs" / "dqn" / "cartpole.yaml"
    local.parent.mkdir(parents=True)
    local.write_text(yaml.safe_dump({**BASE, "seed": 77}))
    assert find_config("configs/dqn/cartpole.yaml") == Path("configs/dqn/cartpole.yaml")
    assert load_config("configs/dqn/cartpole.yaml").seed == 77
    assert find_config("dqn/cartpole.yaml") == shipped


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "configs/dqn/cartpol.yaml",
            "configs/dqn/cartpol.yaml: no such config, here or among the shipped ones; did you mean configs/dqn/cartpole.yaml?",
        ),
        ("zzz", "zzz: no such config, here or among the shipped ones (rl-training configs lists them)"),
        (
            "configs/../../__init__.py",
            "configs/../../__init__.py: no such config, here or among the shipped ones (rl-training configs lists them)",
        ),
    ],
)
def test_a_missing_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(lambda: find_config(name)) == message


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    assert refusal(lambda: load_config(tmp_path)) == f"{tmp_path}: is a folder, not a config"


def test_the_link_at_the_root_is_the_one_copy() -> None:
    root = Path(__file__).parent.parent / "configs"
    assert root.is_symlink()
    assert not os.path.isabs(os.readlink(root))
    assert root.resolve() == SHIPPED_CONFIGS
    assert shipped_configs()
