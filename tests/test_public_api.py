"""The managed classes: train, go on, predict, evaluate, save, load, resume, over every row."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training import DQN, DoubleDQN, ManagedAlgorithm, TrainConfig
from rl_training.api.managed import _CLASSES
from rl_training.errors import CheckpointError, ConfigError, Interrupted, UserError
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.runtime.callbacks import Callback

TINY: dict[str, Any] = {
    "learning_starts": 30,
    "batch_size": 8,
    "hidden_sizes": (8,),
    "buffer_capacity": 300,
    "exploration_fraction": 0.9,  # ε still falls when a first learn() ends
    "num_steps": 32,  # on-policy rows; no multiple of it is where a run of these tests stops
    "eval_episodes": 1,
    "eval_interval": 0,
    "checkpoint_interval": 0,
}


def managed_class(row: str) -> type[ManagedAlgorithm]:
    cls: type[ManagedAlgorithm] = getattr(rl_training, _CLASSES[row])
    return cls


def make(cls: type[ManagedAlgorithm], folder: Path, **keywords: Any) -> ManagedAlgorithm:
    categorical = get_algorithm_spec(cls.row).fixed.get("head") == "categorical"
    support = {"v_min": 0.0, "v_max": 200.0} if categorical else {}  # CartPole's returns
    known = TrainConfig.model_fields.keys() | get_algorithm_spec(cls.row).settings.model_fields.keys()
    tiny = {key: value for key, value in TINY.items() if key in known}
    return cls("CartPole-v1", **{**tiny, **support, "output_dir": folder, **keywords})


def fingerprint(checkpoint: Path) -> dict[str, str]:
    files = sorted(checkpoint.glob("*.safetensors"))
    assert [file.stem for file in files] == ["model", "replay", "training"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("row", algorithm_names())
def test_every_row_trains_saves_loads_and_predicts(row: str, tmp_path: Path) -> None:
    cls = managed_class(row)
    agent = make(cls, tmp_path / "runs")
    obs = np.array([[0.0, 0.1, 0.0, -0.1], [1.0, 0.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=np.float32)
    assert agent.predict(obs)[0].shape == (3,)  # untrained, but it acts
    result = agent.learn(90)
    assert result.metrics["global_step"] == 90 and result.run_dir.is_dir() and result.checkpoint_path == agent.checkpoint_path
    actions, _ = agent.predict(obs)
    one, _ = agent.predict(obs[0])
    assert np.ndim(one) == 0 and one == actions[0]
    assert agent.evaluate(num_episodes=2)["eval_episodes"] == 2
    loaded = cls.load(agent.save(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict(obs)[0], actions)
    assert loaded.evaluate(2) == agent.evaluate(2) == agent.evaluate(2, device="cpu")
    with pytest.raises(ConfigError, match=r"learningrate is not a key of a config or of .*; did you mean learning_rate\?"):
        cls("CartPole-v1", learningrate=3)


@pytest.mark.parametrize("row", algorithm_names())
def test_two_learns_end_where_one_does(row: str, tmp_path: Path) -> None:
    """The schedules keep the total they began with, and nothing is lost between the calls: the files are the same, byte for byte."""
    cls = managed_class(row)
    whole = make(cls, tmp_path / "whole", total_timesteps=150).learn()
    agent = make(cls, tmp_path / "parts", total_timesteps=150)
    first = agent.learn(71)
    assert first.metrics["global_step"] == 71
    second = agent.learn()
    assert second.metrics["global_step"] == 150 and second.run_dir == first.run_dir
    assert fingerprint(second.checkpoint_path) == fingerprint(whole.checkpoint_path)


def test_load_goes_on_in_a_new_run_and_resume_in_the_same(tmp_path: Path) -> None:
    whole = make(DQN, tmp_path / "whole", total_timesteps=150).learn()
    began = make(DQN, tmp_path / "runs", total_timesteps=150).learn(71)
    loaded = DQN.load(began.run_dir).learn()
    assert loaded.run_dir != began.run_dir
    assert sorted(entry.name for entry in (began.run_dir / "checkpoints").iterdir()) == ["best", "latest", "step_71"]
    resumed = DQN.resume(began.checkpoint_path).learn()
    assert resumed.run_dir == began.run_dir
    assert fingerprint(loaded.checkpoint_path) == fingerprint(resumed.checkpoint_path) == fingerprint(whole.checkpoint_path)


def test_learning_past_the_total_keeps_the_schedules(tmp_path: Path) -> None:
    agent = make(DQN, tmp_path, lr_schedule="linear", total_timesteps=60)
    agent.learn()
    result = agent.learn(40)
    assert result.metrics["global_step"] == 100
    from rl_training.experiment.checkpointing import open_checkpoint

    config = open_checkpoint(result.checkpoint_path).config
    assert (config.total_timesteps, config.horizon) == (100, 60)


def test_the_first_learn_says_the_total_where_nobody_did(tmp_path: Path) -> None:
    agent = make(DQN, tmp_path)
    agent.learn(60)
    assert (agent.config.total_timesteps, agent.config.horizon) == (60, 60)
    assert agent.learn(10).metrics["global_step"] == 70


def test_an_interrupted_learn_goes_on(tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_checkpoint(self, run: Any, path: Path) -> None:
            if run.clock.env_steps == 50:
                raise Interrupted("enough", signum=2)

    agent = make(DQN, tmp_path / "parts", total_timesteps=100, checkpoint_interval=25)
    with pytest.raises(Interrupted):
        agent.learn(callbacks=[Interrupt()])
    assert agent.checkpoint_path is not None and agent.checkpoint_path.name == "step_50"
    result = agent.learn()
    assert result.metrics["global_step"] == 100 and result.run_dir == agent.checkpoint_path.parent.parent
    whole = make(DQN, tmp_path / "whole", total_timesteps=100, checkpoint_interval=25).learn()
    assert fingerprint(result.checkpoint_path) == fingerprint(whole.checkpoint_path)


# Making one


def test_from_a_config(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="dqn",
        env_id="CartPole-v1",
        seed=4,
        total_timesteps=50,
        output_dir=str(tmp_path),
        algo_kwargs={"hidden_sizes": [8], "gamma": 0.9},
    )
    agent = DQN(config, seed=5, batch_size=16)
    assert (agent.config.seed, agent.config.algo_kwargs) == (5, {"hidden_sizes": [8], "gamma": 0.9, "batch_size": 16})
    assert agent.learn().metrics["global_step"] == 50


def test_keywords_find_their_place() -> None:
    agent = DQN("CartPole-v1", num_envs=4, learning_rate=1e-4, algo_kwargs={"gamma": 0.9}, tags=["x"])
    assert agent.config.num_envs == 4 and agent.config.tags == ("x",)
    assert agent.config.algo_kwargs == {"gamma": 0.9, "learning_rate": 1e-4}
    assert (agent.config.algo, agent.config.seed, agent.config.output_dir) == ("dqn", 0, Path("runs"))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"learning_rat": 1}, "learning_rat is not a key of a config or of dqn; did you mean learning_rate?"),
        ({"num_env": 1}, "num_env is not a key of a config or of dqn; did you mean num_envs?"),
        ({"algo": "dqn"}, "algo is not a key of a config or of dqn"),
        ({"batch_size": "8"}, "algo_kwargs.batch_size must be an integer, got '8'"),
        ({"prioritized_alpha": 0.5}, "algo_kwargs.prioritized_alpha needs prioritized: true"),
        ({"algo_kwargs": 3}, "algo_kwargs must be a mapping, got 3"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_a_bad_keyword_is_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DQN("CartPole-v1", **keywords)
    assert str(caught.value) == message


def test_the_wrong_class_says_which_is_right(tmp_path: Path) -> None:
    config = TrainConfig(algo="double_dqn", env_id="CartPole-v1", seed=4, total_timesteps=50, output_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"this config is of double_dqn, and DQN is dqn; use rl_training.DoubleDQN"):
        DQN(config)
    checkpoint = make(DoubleDQN, tmp_path).learn(40).checkpoint_path
    for method in (DQN.load, DQN.resume):
        with pytest.raises(CheckpointError, match=r"is of double_dqn, and DQN is dqn; use rl_training.DoubleDQN"):
            method(checkpoint)


def test_an_unknown_environment_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="CartPole-v1"):
        DQN("CartPol-v1", output_dir=tmp_path / "runs").learn(10)
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_names_a_seed_that_cannot_be(tmp_path: Path) -> None:
    agent = make(DQN, tmp_path)
    agent.learn(40)
    with pytest.raises(UserError, match="seed must be >= 0, got -3"):
        agent.evaluate(1, seed=-3)
    with pytest.raises(UserError, match="device 'gpu' is unknown"):
        agent.evaluate(1, device="gpu")


# What an environment may be given as


def test_what_gymnasium_made_is_taken_for_its_id_and_keywords(tmp_path: Path) -> None:
    with gym.make("CartPole-v1", sutton_barto_reward=True, max_episode_steps=70, render_mode="rgb_array") as env:
        agent = DQN(env, env_kwargs={"wrappers": ["flatten"]})
    assert agent.config.env_id == "CartPole-v1"
    assert agent.config.env_kwargs == {"sutton_barto_reward": True, "max_episode_steps": 70, "wrappers": ["flatten"]}
    with gym.make("CartPole-v1") as env:
        agent = make_on(env, tmp_path)
    assert agent.config.env_kwargs == {} and agent.learn(40).metrics["global_step"] == 40


def make_on(env: Any, folder: Path) -> ManagedAlgorithm:
    return DQN(env, **{key: value for key, value in TINY.items() if key != "num_steps"}, output_dir=folder)


class Nameless(gym.Env[Any, Any]):
    def reset(self, **_: Any) -> Any: ...


def test_an_environment_that_cannot_be_made_again_says_what_to_give() -> None:
    with (
        gym.make("CartPole-v1") as env,
        pytest.raises(ConfigError, match=r"CartPole-v1 is wrapped \(Wrapper\): give a callable"),
    ):
        DQN(gym.Wrapper(env))
    with pytest.raises(ConfigError, match=r"Nameless does not say how it was made: give a callable that makes it"):
        DQN(Nameless())
    several = gym.make_vec("CartPole-v1", num_envs=3)
    with pytest.raises(ConfigError, match=r"a vector environment is not taken.*: give 'CartPole-v1' and num_envs=3"):
        DQN(several)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"must return a gymnasium.Env, not .* \(one environment: num_envs says how many are made\)"):
        DQN(lambda: several).predict(np.zeros(4))
    several.close()
    with pytest.raises(ConfigError, match="an environment is an id such as CartPole-v1, or a callable that makes one, got 3"):
        DQN(3)  # type: ignore[arg-type]


def test_load_says_what_env_is_for(tmp_path: Path) -> None:
    checkpoint = make(DQN, tmp_path).learn(40).checkpoint_path
    with gym.make("CartPole-v1") as env, pytest.raises(ConfigError, match="env must be the callable that makes the run's environment"):
        DQN.load(checkpoint, env=env)  # type: ignore[arg-type]


# Shipped configs


def test_from_config_takes_a_shipped_one_by_name_or_a_file(tmp_path: Path) -> None:
    agent = DQN.from_config("dqn/cartpole", seed=7, batch_size=16, output_dir=tmp_path)
    shipped = load_config("configs/dqn/cartpole.yaml")
    assert agent.config == shipped.replace(seed=7, output_dir=tmp_path, algo_kwargs={**shipped.algo_kwargs, "batch_size": 16})
    agent.config.save(tmp_path / "mine.yaml")
    assert DQN.from_config(tmp_path / "mine.yaml").config.settings == agent.config.settings
    with pytest.raises(ConfigError, match=r"dqn/cartpole: is of dqn, and DoubleDQN is double_dqn; use rl_training.DQN"):
        DoubleDQN.from_config("dqn/cartpole")
    with pytest.raises(ConfigError, match=r"dqn/cartpol: no such config.*did you mean dqn/cartpole\?"):
        DQN.from_config("dqn/cartpol")


@pytest.mark.parametrize(
    ("keywords", "hinted"),
    [({}, True), ({"eval_episodes": 1}, True), ({"batch_size": 8}, False), ({"env_kwargs": {"max_episode_steps": 9}}, False)],
)
def test_bare_defaults_point_to_what_was_tuned(keywords: dict[str, Any], hinted: bool, tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", **{"output_dir": tmp_path, **keywords})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        agent.learn(30)
        agent.learn(10)  # said once
    tuned = [str(each.message) for each in heard if "from_config" in str(each.message)]
    assert tuned == (
        ['dqn on CartPole-v1 with its defaults; the settings that were tuned: DQN.from_config("dqn/cartpole")'] if hinted else []
    )
    if hinted:
        assert next(each.filename for each in heard if "from_config" in str(each.message)) == __file__


def test_there_must_be_something_to_save(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to save"):
        DQN("CartPole-v1").save(tmp_path / "x")
    with pytest.raises(UserError, match="nothing to evaluate"):
        DQN("CartPole-v1").evaluate()
    with pytest.raises(UserError, match="total_timesteps must be >= 1"):
        DQN("CartPole-v1").learn(0)


# A callable environment


def make_cartpole(**keywords: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **keywords)


def test_an_environment_made_by_a_callable(tmp_path: Path) -> None:
    keywords: dict[str, Any] = {**TINY, "output_dir": tmp_path, "total_timesteps": 120}
    del keywords["num_steps"]
    agent = DQN(make_cartpole, **keywords)
    assert agent.predict(np.zeros(4, np.float32))[0] in (0, 1)
    result = agent.learn(60)
    assert "make_cartpole" in result.run_dir.name
    agent.evaluate(1)
    without = DQN.load(result.checkpoint_path)
    assert without.predict(np.zeros(4, np.float32))[0] in (0, 1)  # a policy needs no environment
    with pytest.raises(UserError, match="callable"):
        without.learn()
    resumed = DQN.resume(result.checkpoint_path, env=make_cartpole).learn()
    named = DQN("CartPole-v1", **keywords).learn()
    assert fingerprint(resumed.checkpoint_path)["model.safetensors"] == fingerprint(named.checkpoint_path)["model.safetensors"]
