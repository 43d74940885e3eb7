"""The keywords of managed classes: every key with type, default and meaning, in `help()`, in signatures and for editors."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training import DQN, PPO, ManagedAlgorithm, TrainConfig
from rl_training.api.keywords import ELSEWHERE, keywords_of
from rl_training.api.managed import _CLASSES
from rl_training.errors import ConfigError, UserError
from rl_training.experiment import registry
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec, register_algorithm

ROOT = Path(__file__).resolve().parent.parent
TINY: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 8, "buffer_capacity": 300, "learning_starts": 20, "eval_episodes": 1}


def test_a_key_assigned_to_an_agent_is_no_silent_nothing() -> None:
    agent = DQN("CartPole-v1")
    with pytest.raises(ConfigError, match=r"^gamma cannot be assigned; DQN\(agent.config, gamma=0.9\) makes a new agent with it$"):
        agent.gamma = 0.9  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="seed cannot be assigned"):
        agent.seed = 3  # type: ignore[attr-defined]
    other = DQN(agent.config, gamma=0.9)
    assert (other.config.settings.to_dict()["gamma"], agent.config.settings.to_dict()["gamma"]) == (0.9, 0.99)
    agent.notes = "my own"  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", algorithm_names())
def test_every_key_has_a_type_a_default_and_a_meaning(row: str) -> None:
    cls = getattr(rl_training, _CLASSES[row])
    parameters = inspect.signature(cls).parameters
    spec = get_algorithm_spec(row)
    assert list(parameters) == [
        "config",
        *spec.settings.model_fields,
        *(key for key in TrainConfig.model_fields if key not in ("algo", "env_id")),
    ]
    defaults = spec.parse({})
    given = {key: value.default for key, value in parameters.items() if key != "config"}
    for keyword in keywords_of(row):
        assert keyword.meaning, f"{keyword.name} of {row} has no meaning: experiment/meanings.py"
        assert "<" not in keyword.type and "Annotated" not in keyword.type
        assert parameters[keyword.name].default == keyword.default
        if keyword.of_row and all(need.met(given) for need in spec.settings.needs(keyword.name)):
            assert keyword.default == getattr(defaults, keyword.name)  # what a config that says nothing gets
        assert f"\n  {keyword.name}: {keyword.type} = " in cls.__doc__
    used = {key: value for key, value in given.items() if all(need.met(given) for need in spec.settings.needs(key))}
    assert cls("CartPole-v1", **used).config.settings == defaults  # every default may be given


def test_the_base_class_and_a_row_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(inspect.signature(ManagedAlgorithm).parameters)[:1] == ["config"]
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    monkeypatch.setitem(_CLASSES, "later", "Later")

    class Later(ManagedAlgorithm, row="later"):
        """Mine."""

    assert Later.__doc__ == "Mine." and "learning_rate" not in inspect.signature(Later).parameters
    register_algorithm("later", trainer="m:f", summary="mine", defaults={"gamma": 0.5})
    assert inspect.signature(Later).parameters["gamma"].default == 0.5


@pytest.mark.slow
def test_a_type_checker_sees_the_keys(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "user.py"
    file.write_text(
        "from rl_training import DQN, PPO\n"
        "DQN('CartPole-v1', learning_rate={'schedule': 'cosine', 'start': 1e-3}, hidden_sizes=[64], num_envs=4)\n"
        "PPO.from_config('ppo/cartpole', clip_coef=lambda step: 0.1, seed=2)\n"
        "DQN('CartPole-v1', batch_size='64')\n"
        "DQN('CartPole-v1', clip_coef=0.1)\n"
        "PPO.from_config('ppo/cartpole', buffer_capacity=10)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_environment()).stdout.splitlines()
    errors = [line.split("error: ")[1] for line in lines if "user.py" in line and "error: " in line]
    assert [line.split(":")[1] for line in lines if "user.py" in line and "error: " in line] == ["4", "5", "6"], lines
    assert "batch_size" in errors[0] and '"clip_coef"' in errors[1] and '"buffer_capacity"' in errors[2]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "MYPYPATH": str(ROOT / "src")}


# Words of other packages


@pytest.mark.parametrize(
    ("cls", "word", "said"),
    [
        (DQN, "buffer_size", "here it is buffer_capacity"),
        (DQN, "lr", "here it is learning_rate"),
        (DQN, "net_arch", "here it is hidden_sizes"),
        (DQN, "verbose", "learn(quiet=False) shows progress"),
        (DQN, "policy_kwargs", "the network's keys stand beside the others: hidden_sizes, torso and more"),
        (DQN, "exploration_final_eps", "here it is epsilon_end"),
        (DQN, "train_freq", "here it is train_frequency"),
        (PPO, "n_steps", "here it is num_steps"),
        (PPO, "batch_size", "here it is minibatch_size"),
        (PPO, "clip_range", "here it is clip_coef"),
        (PPO, "env", "the environment is the first argument: its id, or a callable that makes it"),
    ],
)
def test_words_of_stable_baselines3_are_answered(cls: type[ManagedAlgorithm], word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cls("CartPole-v1", **{word: 1})
    assert str(caught.value) == f"{word} is not a key of a config or of {cls.row}; {said}"


def test_a_word_for_what_the_row_does_not_have_promises_nothing() -> None:
    with pytest.raises(ConfigError) as caught:
        DQN("CartPole-v1", clip_range=0.2)  # type: ignore[call-arg]
    assert "clip_coef" not in str(caught.value)
    keys = {keyword.name for name in algorithm_names() for keyword in keywords_of(name)}
    assert set(ELSEWHERE.values()) <= keys


def test_a_policy_before_the_environment_is_answered() -> None:
    with pytest.raises(UserError, match="DQN takes one environment or config, and the rest by name: a row has one kind of network"):
        DQN("MlpPolicy", "CartPole-v1")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("callback", "callback is not a key of learn; learn(callbacks=...) takes them"),
        ("progress_bar", "progress_bar is not a key of learn; learn(quiet=False) shows it"),
        ("extend_schedul", "extend_schedul is not a key of learn; did you mean extend_schedule?"),
    ],
)
def test_words_of_learn_are_answered(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        DQN("CartPole-v1", output_dir=tmp_path / "runs").learn(10, **{word: True})
    assert str(caught.value) == said and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("n_eval_episodes", "n_eval_episodes is not a key of evaluate; num_episodes says how many it plays"),
        ("deterministic", "deterministic is not a key of evaluate; it is always greedy"),
        (
            "env",
            "env is not a key of evaluate; "
            "an agent plays the environment it was trained in; load(path, env=...) gives it the callable that makes that",
        ),
        ("num_episode", "num_episode is not a key of evaluate; did you mean num_episodes?"),
    ],
)
def test_words_of_evaluate_are_answered(word: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        DQN("CartPole-v1").evaluate(**{word: True})
    assert str(caught.value) == said


def test_every_word_of_sb3s_evaluate_policy_is_answered() -> None:
    theirs = "model env n_eval_episodes deterministic render callback reward_threshold return_episode_rewards warn"
    for word in theirs.split():
        with pytest.raises(UserError, match=f"^{word} is not a key of evaluate; (?!did you mean|known:)"):
            DQN("CartPole-v1").evaluate(**{word: True})


# An agent as it is


def test_an_agent_says_what_it_is_and_where_it_stands(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", seed=3, total_timesteps=2_000, output_dir=tmp_path, **TINY)
    assert repr(agent) == "DQN('CartPole-v1', seed=3: untrained)"
    agent.learn(40)
    assert repr(agent) == f"DQN('CartPole-v1', seed=3: step 40 of 2,000, {agent.checkpoint_path})"
    copied = agent.save(tmp_path / "mine")
    assert repr(DQN.load(copied)) == f"DQN('CartPole-v1', seed=3: loaded, {copied})"


def test_the_network_is_the_one_that_acts(tmp_path: Path) -> None:
    import torch

    agent = DQN("CartPole-v1", output_dir=tmp_path, **TINY)
    before = {name: value.clone() for name, value in agent.network.state_dict().items()}
    result = agent.learn(80)
    from safetensors.torch import load_file

    saved = load_file(result.checkpoint_path / "model.safetensors")
    now = agent.network.state_dict()
    assert isinstance(agent.network, torch.nn.Module) and now.keys() == saved.keys()
    assert all(torch.equal(now[name], saved[name]) for name in saved)
    assert any(not torch.equal(now[name], before[name]) for name in saved)


class Rooms(gym.Env[Any, Any]):
    """A Dict environment: where one is, and which door is open."""

    observation_space = gym.spaces.Dict({"door": gym.spaces.Discrete(3), "place": gym.spaces.Box(-1, 1, (2,), np.float32)})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), 1.0, bool(self.np_random.random() < 0.2), False, {}

    def _seen(self) -> dict[str, Any]:
        return {"door": self.np_random.integers(3), "place": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


def test_predict_takes_what_a_dict_environment_gives(tmp_path: Path) -> None:
    agent = DQN(Rooms, output_dir=tmp_path, env_kwargs={"wrappers": ["flatten"]}, **TINY)
    raw = {"door": 1, "place": [0.5, -0.5]}
    flat = [0, 1, 0, 0.5, -0.5]  # one-hot, then the place
    agent.learn(60)
    weights = agent.network
    for given in (raw, {"door": np.int64(1), "place": np.array([0.5, -0.5], np.float32)}):
        assert agent.predict(given) == agent.predict(flat)
    with pytest.raises(UserError, match=r"an observation has an obs that must hold the keys 'door', 'place', got the keys 'door'"):
        agent.predict({"door": 1})
    agent.learn(10)
    assert agent.network is not weights and agent.predict(raw) == agent.predict(flat)


def test_a_stack_looks_back_until_an_episode_starts(tmp_path: Path) -> None:
    wrappers = ["flatten", {"frame_stack": {"size": 2}}]
    agent = DQN(Rooms, output_dir=tmp_path, env_kwargs={"wrappers": wrappers}, **TINY)
    read: list[list[float]] = []
    original = agent._asked().predict

    def watch(obs: Any, *rest: Any, **more: Any) -> Any:
        read.append(np.asarray(obs).ravel().tolist())
        return original(obs, *rest, **more)

    agent._asked().predict = watch  # type: ignore[method-assign]
    first, second = {"door": 0, "place": [0.0, 0.0]}, {"door": 2, "place": [1.0, 1.0]}
    a, b = [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]
    for obs, start in ((first, None), (second, None), (second, True)):
        agent.predict(obs, episode_start=start)
    assert read[1] == [*a, *b] and read[2][-5:] == b and read[2][:5] != a
