"""Configs: YAML as people write it, overrides, the lookup of shipped files, and refusals that name key, file and nearest key."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import re
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
from rl_training.experiment.yaml_text import parse_yaml
from rl_training.ledger.suites import load_suite
from rl_training.ledger.tune import load_space

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
        ({"threads": 0}, "threads must be auto or an integer from 1 to 1,024, got 0"),
        ({"threads": True}, "threads must be auto or an integer from 1 to 1,024, got True"),
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
        ({"zzz": 3}, "zzz is not a key of a config of this version (`rl-training --version` says which)"),
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


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("config.seed = 3", "seed cannot be assigned; config.replace(seed=3) gives a changed copy"),
        ("del config.seed", "seed cannot be deleted; config.replace(seed=...) gives a changed copy"),
        ("config.sede = 3", "sede cannot be assigned; it is not a key of a config; did you mean seed?"),
        (
            "config.gamma = 0.9",
            'gamma cannot be assigned; config.replace(algo_kwargs={**config.algo_kwargs, "gamma": 0.9}) gives a changed copy',
        ),
        (
            "config.settings.gamma = 0.9",
            'gamma cannot be assigned; config.replace(algo_kwargs={**config.algo_kwargs, "gamma": 0.9}) gives a changed copy',
        ),
        (  # parsed already: this would do nothing, and nobody would say so
            'config.algo_kwargs["gamma"] = 0.9',
            'algo_kwargs of a config cannot be changed in place; config.replace(algo_kwargs={**config.algo_kwargs, "gamma": 0.9}) '
            "gives a changed copy",
        ),
        (
            "config.env_kwargs.update(gravity=1.0)",
            'env_kwargs of a config cannot be changed in place; config.replace(env_kwargs={**config.env_kwargs, "key": ...}) '
            "gives a changed copy",
        ),
    ],
)
def test_a_config_says_how_to_change_it(statement: str, message: str) -> None:
    config = TrainConfig(**BASE, algo_kwargs={"gamma": 0.5})
    with pytest.raises(ConfigError) as refused:
        exec(statement, {"config": config})
    assert str(refused.value) == message
    assert config == TrainConfig(**BASE, algo_kwargs={"gamma": 0.5})
    if "replace" in message and "..." not in message:  # what it says to do is what does it
        changed = eval(message.split("; ")[1].removesuffix(" gives a changed copy"), {"config": config})
        assert (changed.seed, changed.settings.gamma) in {(3, 0.5), (config.seed, 0.9)}


def test_copies_keep_their_settings() -> None:
    config = TrainConfig(**BASE, algo_kwargs={"batch_size": 8})
    assert copy.deepcopy(config).settings == config.settings
    assert pickle.loads(pickle.dumps(config)).settings == config.settings


def test_callable_environments_are_marked() -> None:
    env_id = callable_env_id(test_defaults)
    assert callable_env_id(functools.partial(functools.partial(test_defaults, 1), 2)) == env_id  # a run is named by what it calls
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
        (
            "{env_kwargs: &loop {a: *loop}, algo: dqn, env_id: x, seed: 1, total_timesteps: 1, output_dir: x}",
            "an alias stands inside of what it",
        ),
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


def test_a_part_that_an_override_switches_off_takes_the_files_numbers_along(tmp_path: Path) -> None:
    numbers = {"prioritized": True, "prioritized_alpha": 0.5, "priority_eps": 1e-3, "batch_size": 64}
    path = config_file(tmp_path, algo_kwargs=numbers)
    assert load_config(path, ["algo_kwargs.prioritized=false"]).algo_kwargs == {"prioritized": False, "batch_size": 64}
    assert load_config(path, ["algo_kwargs.batch_size=32"]).algo_kwargs == {**numbers, "batch_size": 32}
    # what is typed beside it is not dropped but refused, and so is a file that contradicts itself
    beside = ["algo_kwargs.prioritized=false", "algo_kwargs.prioritized_alpha=0.6"]
    message = "algo_kwargs.prioritized_alpha needs prioritized: true"
    assert refusal(lambda: load_config(path, beside)) == f"--set {beside[1]}: {message}"
    itself = config_file(tmp_path, algo_kwargs={**numbers, "prioritized": False})
    assert message in refusal(lambda: load_config(itself, ["algo_kwargs.batch_size=32"]))


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
    assert shipped == find_config("dqn/cartpole.yaml") == find_config("dqn/cartpole") == SHIPPED_CONFIGS / "dqn" / "cartpole.yaml"
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
        ("r2d2/tmase", "r2d2/tmase: no such config, here or among the shipped ones; did you mean r2d2/tmaze?"),
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


# Sizes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threads": 100_000}, "threads must be auto or an integer from 1 to 1,024, got 100000"),
        ({"num_envs": 10**8}, "num_envs must be <= 65536, got 100000000"),
        ({"num_envs": 5_000, "vectorization": "async"}, "num_envs must be <= 1,024 with vectorization: async (a process each), got 5000"),
        ({"device": "cuda:99999999999"}, "device must be auto, cpu, cuda, cuda:<number> or mps, got 'cuda:99999999999'"),
        ({"total_timesteps": 10**400}, "total_timesteps must be <= 1000000000000000, got an integer of 1329 bits"),
        ({"algo_kwargs": {"n_step": 2**31}}, "algo_kwargs.n_step must be <= 4096, got 2147483648"),
        (
            {"algo_kwargs": {"n_step": 4_000}, "num_envs": 4_000},
            "algo_kwargs.n_step times num_envs must be <= 10,000,000, got 4000 times 4000",
        ),
        ({"algo_kwargs": {"hidden_sizes": [10**6]}}, "algo_kwargs.hidden_sizes.0 must be <= 16384, got 1000000"),
        ({"algo_kwargs": {"hidden_sizes": [1] * 65}}, "algo_kwargs.hidden_sizes must hold at most 64 values, got 65"),
        ({"algo_kwargs": {"batch_size": 10**9, "buffer_capacity": 10**9}}, "algo_kwargs.batch_size must be <= 1048576, got 1000000000"),
        ({"algo_kwargs": {"head": "categorical", "num_atoms": 10**6}}, "algo_kwargs.num_atoms must be <= 10000, got 1000000"),
        ({"algo_kwargs": {"head": "quantile", "num_quantiles": 10**6}}, "algo_kwargs.num_quantiles must be <= 10000, got 1000000"),
        ({"algo_kwargs": {"head": "implicit", "embedding_dim": 10**6}}, "algo_kwargs.embedding_dim must be <= 16384, got 1000000"),
        ({"algo": "drqn", "algo_kwargs": {"sequence_length": 10**6}}, "algo_kwargs.sequence_length must be <= 65536, got 1000000"),
        (
            {"algo": "drqn", "algo_kwargs": {"recurrent_hidden_size": 10**6}},
            "algo_kwargs.recurrent_hidden_size must be <= 16384, got 1000000",
        ),
        ({"algo": "drqn", "algo_kwargs": {"recurrent_num_layers": 65}}, "algo_kwargs.recurrent_num_layers must be <= 64, got 65"),
        ({"algo": "ppo", "algo_kwargs": {"num_steps": 10**8}}, "algo_kwargs.num_steps must be <= 1000000, got 100000000"),
        ({"env_kwargs": {"x": 2**2000}}, "env_kwargs.x must be a smaller number, got an integer of 2001 bits"),
        ({"env_kwargs": {"x": "\ud800"}}, "env_kwargs.x must be text that a file can hold, got '\\ud800'"),
        ({"tags": ["a\0b"]}, "tags.0 must be text that a file can hold, got 'a\\x00b'"),
        ({"output_dir": "a\0b"}, "output_dir must be text that a file can hold, got 'a\\x00b'"),
        ({"tags": list(range(10**5))}, "tags.0 must be text, got 0 (and 99999 more)"),
        ({"tags": {"x": list(range(10**6))}}, "tags must be a list, got {'x': [0, 1, 2, 3, 4, 5, 6, 7, ...]}"),
    ],
)
def test_a_number_that_would_take_the_machine_down_is_refused(values: dict[str, Any], message: str) -> None:
    assert refusal(lambda: TrainConfig(**{**BASE, **values})) == message


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{name}'] * 9)}]\n" for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{name}'] * 9)}]}}\n" for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)
LONG = f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 1_000)}]\n"


@pytest.mark.parametrize("text", [BOMB, MERGED, LONG])
def test_a_bomb_of_aliases_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    message = "its aliases, written out, are too much to read"
    assert refusal(lambda: load_config(tmp_path / "bomb.yaml")).endswith(message)
    assert refusal(lambda: load_suite(tmp_path / "bomb.yaml")).endswith(message)
    assert refusal(lambda: load_space(tmp_path / "bomb.yaml")).endswith(message)
    assert refusal(lambda: parse_override("env_kwargs=" + f"[&a [{'x, ' * 99}x], &b [{'*a, ' * 99}*a], [{'*b, ' * 99}*b]]")).endswith(
        message
    )
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]", source="x")["b"] == {"x": 1, "y": 2}  # as people use them


@pytest.mark.parametrize(
    ("text", "message"), [("null: 1", "None is no key"), ("2: 1", "2 is no key"), ("[1]", "must hold keys and values")]
)
def test_keys_that_are_no_text_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    for load in (load_suite, load_space):
        assert message in refusal(lambda load=load: load(tmp_path / "x.yaml"))
    assert "is not a key of a config" in refusal(lambda: load_config(tmp_path / "x.yaml")) or text == "[1]"


def test_a_config_is_a_regular_file_of_some_size(tmp_path: Path) -> None:
    with (tmp_path / "long.yaml").open("wb") as file:
        file.truncate(10 << 30)
    assert "is larger than the 262,144 bytes" in refusal(lambda: load_config(tmp_path / "long.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "no such config" in refusal(lambda: load_config(tmp_path / "pipe.yaml"))
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert "no such config" in refusal(lambda: load_config(tmp_path / "loop.yaml"))


WORDS = {"two": 2, "three": 3, "five": 5}


@pytest.mark.parametrize("name", shipped_configs())
def test_what_a_config_says_of_itself_is_so(name: str) -> None:
    """Comments name numbers and parts: they must be those of the keys below them."""
    comments = " ".join(re.findall(r"#(.*)", (SHIPPED_CONFIGS / name).read_text(encoding="utf-8")))
    settings = load_config(name).settings.to_dict()
    for said in re.findall(r"(\d+) quantiles", comments):
        assert settings["num_quantiles"] == int(said)
    for said in re.findall(r"(\d+) atoms", comments):
        assert settings["num_atoms"] == int(said)
    for said in re.findall(r"(two|three|five)-step returns", comments):
        assert settings["n_step"] == WORDS[said]
    if "narrow (no burn-in, no rescaling)" in comments:
        assert (settings["burn_in"], settings["value_rescaling"]) == (0, False)
    if "every part of the paper" in comments:
        assert settings["burn_in"] > 0 and settings["value_rescaling"] and settings["epsilon_ladder"] and settings["sequence_overlap"] > 0


@pytest.mark.parametrize("name", [name for name in shipped_configs() if name.endswith("/cartpole.yaml")])
def test_returns_over_several_steps_are_said_where_a_row_is_not_known_for_them(name: str) -> None:
    config = load_config(name)
    n_step = config.settings.to_dict().get("n_step", 1)
    if n_step != 1 and config.algo not in ("n_step_dqn", "rainbow_dqn", "r2d2", "btr"):
        title = (SHIPPED_CONFIGS / name).read_text(encoding="utf-8").splitlines()[0]
        assert any(f"{word}-step returns" in title for word, number in WORDS.items() if number == n_step), title
