"""PPO and recurrent PPO end to end: every kind of action, both ends of an episode, normalisation, resume, bad input, learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from recurrent_runs import VELOCITY_FREE, Keep
from reference_scripts import run_example
from rl_training.algorithms import PPO
from rl_training.envs.chain import Chain, optimal_q
from rl_training.errors import ConfigError, SpaceError, UserError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, resume_training, train

ROWS = ("ppo", "recurrent_ppo")
LENGTH, GAMMA = 5, 0.9  # of the chain
FILES = ("model.safetensors", "training.safetensors", "replay.safetensors")


def small_config(folder: Path, algo: str = "ppo", **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {"hidden_sizes": [8], "num_steps": 16, "minibatch_size": 32, "update_epochs": 2}
    if algo == "recurrent_ppo":
        settings |= {"features_dim": 8, "recurrent_hidden_size": 8}
    settings |= changes.pop("algo_kwargs", {})
    values = {"algo": algo, "env_id": "CartPole-v1", "seed": 5, "num_envs": 4, "total_timesteps": 300, "output_dir": str(folder)}
    often = {"eval_episodes": 2, "eval_interval": 0, "log_interval": 50, "checkpoint_interval": 0, "threads": 1}
    return TrainConfig(**{**values, **often, **changes, "algo_kwargs": settings})


class Pointer(gym.Env[Any, Any]):
    """Reward 1 for pointing at the side that is shown, in one step: learned in seconds, with any kind of action."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, kind: str = "discrete") -> None:
        self.kind = kind
        self.action_space = {
            "discrete": gym.spaces.Discrete(2, start=3),
            "multi": gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
            "box": gym.spaces.Box(-0.5, 0.5, (1, 2), np.float32),
        }[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return np.array([2.0 * self.side - 1], np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self.kind == "discrete":
            reward = float(action - 3 == self.side)
        elif self.kind == "multi":
            reward = float(action[0] - 1 == self.side and action[1] == 2)
        else:
            reward = 1 - float(np.abs(action - (self.side - 0.5) / 2).mean())
        return np.zeros(1, np.float32), reward, True, False, {}


@pytest.mark.parametrize("kind", ["discrete", "multi", "box"])
@pytest.mark.parametrize("algo", ROWS)
def test_every_kind_of_action_is_learned_saved_and_predicted(algo: str, kind: str, tmp_path: Path) -> None:
    settings = {"learning_rate": 1e-2, "update_epochs": 5, "num_steps": 32, "minibatch_size": 64, "log_std_init": -1.0}
    config = small_config(tmp_path, algo, env_id="callable:Pointer", total_timesteps=2_560, algo_kwargs=settings, eval_episodes=20)
    result = train(config, env=lambda: Pointer(kind))
    assert result.metrics["eval_return_mean"] > 0.9
    policy = load_policy(result.checkpoint_path)
    space = Pointer(kind).action_space
    actions, _ = policy.predict(np.array([[-1.0], [1.0]], np.float32))
    for obs, action in zip(([-1.0], [1.0]), actions, strict=True):
        one, _ = policy.predict(np.array(obs, np.float32))
        np.testing.assert_allclose(one, action, rtol=1e-5)
        assert space.contains(action)
    drawn = [policy.predict(np.array([1.0], np.float32), deterministic=False)[0] for _ in range(20)]
    if kind == "box":
        assert len({tuple(np.ravel(action)) for action in drawn}) > 1


@pytest.mark.parametrize("algo", ROWS)
def test_updates_come_with_full_rollouts(algo: str, tmp_path: Path) -> None:
    """4 environments × 16 steps: rollouts at 64, 128, 192, 256 of 300 steps, 2 epochs of 2 minibatches each."""
    seen: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_update(self, run: Run, result: Any) -> None:
            seen.append((run.clock.env_steps, result.num_gradient_steps))

    result = train(small_config(tmp_path, algo), callbacks=[Watch()])
    assert [step for step, _ in seen] == [64, 128, 192, 256]
    if algo == "ppo":
        assert [count for _, count in seen] == [4] * 4
    assert result.metrics["global_step"] == 300 and result.metrics["num_updates"] == sum(count for _, count in seen)
    assert result.metrics["buffer_size"] == 44  # the open rollout, saved and not learned from


class Cut(gym.Env[Any, Any]):
    """Never terminates; cut after 3 steps. Shows the step; its final observation is one that no reset shows."""

    observation_space = gym.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([self.t], np.float32), 1.0, False, self.t == 3, {}


def test_a_time_limit_bootstraps_from_the_true_final_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends are stored as they were, and V' at a cut is V(final observation 3), not V(0) of the reset."""
    checked = []
    original = PPO.evaluate

    def evaluate(self: PPO, rollout: Any) -> Any:
        found = original(self, rollout)
        with torch.no_grad():
            at_three = float(self.actor_critic(torch.full((1, 1), 3.0))[1])
        cut = rollout.field("truncated")
        np.testing.assert_array_equal(rollout.field("obs")[cut].ravel(), 2.0)
        np.testing.assert_array_equal(rollout.field("next_obs")[cut].ravel(), 3.0)
        np.testing.assert_allclose(found.next_values[cut], at_three, rtol=1e-5)
        assert not rollout.field("terminated").any() and cut.sum() == 4 * 5
        checked.append(len(rollout))
        return found

    monkeypatch.setattr(PPO, "evaluate", evaluate)
    train(small_config(tmp_path, env_id="callable:Cut", total_timesteps=64), env=Cut)
    assert checked == [16]


@pytest.mark.parametrize("algo", ROWS)
def test_a_native_vector_environment_trains_without_its_reset_steps(algo: str, tmp_path: Path) -> None:
    keep = Keep()
    valid: list[Any] = []

    class Watch(Callback):
        def on_step(self, run: Run, step: Any) -> None:
            valid.append(step.valid)

    result = train(small_config(tmp_path, algo, vectorization="native"), callbacks=[keep, Watch()])
    assert not np.all(valid), "no episode ended: the test showed nothing"
    assert result.metrics["global_step"] == np.sum(valid) >= 300

    class Look(Callback):
        def on_start(self, run: Run) -> None:
            rollout = run.parts.replay
            self.truncated, self.terminated = rollout.field("truncated").copy(), rollout.field("terminated").copy()

    # Resumed, its episodes begin anew, and what the rollout holds ends as at a time limit: δ must not bootstrap from the fresh episode.
    look = Look()
    again = resume_training(result.run_dir, total_timesteps=400, callbacks=[look])
    assert again.metrics["global_step"] >= 400
    assert len(look.truncated), "the run ended between two rollouts: the test showed nothing"
    assert (look.truncated[-1] ^ look.terminated[-1]).all()
    assert not look.truncated[:-1].all(1).any()


@pytest.mark.parametrize("algo", ROWS)
def test_a_run_cut_in_the_middle_of_a_rollout_ends_the_same(algo: str, tmp_path: Path) -> None:
    """Stopped at a step inside a rollout and resumed: the same bytes, with normalisation and Box actions too."""
    options: dict[str, Any] = {"env_id": "Pendulum-v1", "num_envs": 2, "total_timesteps": 500}
    options["env_kwargs"] = {"wrappers": ["normalize_observation", "normalize_reward"]}
    whole = train(small_config(tmp_path / "whole", algo, **options))

    class Stop(Callback):
        def on_step(self, run: Run, step: Any) -> None:
            if run.clock.env_steps == 250:  # 32 steps a rollout: 26 of the eighth
                run.stop("here")

    part = train(small_config(tmp_path / "part", algo, **options), callbacks=[Stop()])
    assert part.checkpoint_path.name == "step_250"
    resumed = resume_training(part.run_dir)
    for name in FILES:
        assert (resumed.checkpoint_path / name).read_bytes() == (whole.checkpoint_path / name).read_bytes(), name


def test_a_checkpoint_without_its_rollout_begins_a_new_one_and_says_so(tmp_path: Path) -> None:
    result = train(small_config(tmp_path, checkpoint_replay=False))
    with pytest.warns(UserWarning, match="holds no replay"):
        again = resume_training(result.run_dir, total_timesteps=400)
    assert again.metrics["global_step"] == 400


@pytest.mark.parametrize("algo", ROWS)
def test_evaluation_and_prediction_use_the_saved_statistics(algo: str, tmp_path: Path) -> None:
    config = small_config(tmp_path, algo, env_kwargs={"wrappers": ["normalize_observation", "normalize_reward"]})
    keep = Keep()
    result = train(config, callbacks=[keep])
    state = open_checkpoint(result.checkpoint_path).load_training()["actor"]["envs"]["statistics"]
    assert int(state["observation"]["count"]) >= 300 and int(state["reward"]["count"]) == 300
    again = evaluate_checkpoint(result.checkpoint_path, num_episodes=2)
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert again["eval_return_mean"] == again["eval_length_mean"]  # CartPole's own rewards, not the normalised ones
    policy = load_policy(result.checkpoint_path)
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    mean, var = (np.asarray(state["observation"][key]) for key in ("mean", "m2"))
    normal = ((obs - mean) / np.sqrt(var / int(state["observation"]["count"]) + 1e-8)).clip(-10, 10).astype(np.float32)
    network = keep.parts.actor.network
    with torch.no_grad():
        outputs, _ = network.step(torch.from_numpy(normal), network.initial_state(8), torch.zeros(8))
    np.testing.assert_array_equal(policy.predict(obs)[0], outputs.numpy().argmax(-1))


@pytest.mark.parametrize("algo", ROWS)
def test_a_recurrent_policy_carries_its_state_and_a_plain_one_none(algo: str, tmp_path: Path) -> None:
    policy = load_policy(train(small_config(tmp_path, algo, env_kwargs=VELOCITY_FREE)).checkpoint_path)
    obs = np.zeros((3, 2), np.float32)
    _, state = policy.predict(obs)
    assert len(state) == (2 if algo == "recurrent_ppo" else 0)
    if state:
        _, zeroed = policy.predict(obs, state, episode_start=[True, False, False])
        _, after = policy.predict(obs, state)
        fresh = policy.predict(obs)[1]
        assert torch.equal(zeroed[0][:, 0], fresh[0][:, 0]) and torch.equal(zeroed[0][:, 1:], after[0][:, 1:])
        assert not torch.equal(after[0], fresh[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_coef": 0.0}, "algo_kwargs.clip_coef must be > 0"),
        ({"num_steps": 0}, "algo_kwargs.num_steps must be >= 1"),
        ({"gae_lambda": 1.5}, "algo_kwargs.gae_lambda must be <= 1"),
        ({"clip_schedule": "cosine"}, "algo_kwargs.clip_schedule must be one of"),
        ({"learning_rate_end": 0.1}, "algo_kwargs.learning_rate_end needs lr_schedule: linear"),
        ({"clip_range": 0.1}, "algo_kwargs.clip_range is not a key of ppo"),
        ({"batch_size": 64}, "did you mean minibatch_size?"),
        ({"target_kl": -1.0}, "algo_kwargs.target_kl"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        small_config(tmp_path, algo_kwargs=settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("algo", ROWS)
def test_spaces_it_cannot_act_in_are_refused_before_anything_is_written(algo: str, tmp_path: Path) -> None:
    class Switches(Cut):
        action_space = gym.spaces.MultiBinary(3)

    with pytest.raises(SpaceError, match=rf"{algo} cannot act in .*MultiBinary.* it takes Discrete or MultiDiscrete or a Box"):
        train(small_config(tmp_path / "runs", algo, env_id="callable:Switches"), env=Switches)
    assert not (tmp_path / "runs").exists()


def test_a_value_based_row_still_refuses_box_actions(tmp_path: Path) -> None:
    config = TrainConfig(algo="dqn", env_id="Pendulum-v1", seed=0, total_timesteps=50, output_dir=str(tmp_path / "runs"))
    with pytest.raises(UserError, match="dqn cannot act in"):
        train(config)


@pytest.mark.parametrize("algo", ROWS)
def test_the_chain_is_learned_with_its_values(algo: str, tmp_path: Path) -> None:
    """V of the learned policy on a chain that is cut after 6 steps: an agent that took the cut for an end would value it lower."""
    settings = {"hidden_sizes": [], "learning_rate": 0.03, "lr_schedule": "linear", "gamma": 0.9, "update_epochs": 8, "num_steps": 32}
    if algo == "recurrent_ppo":
        settings |= {"features_dim": None, "recurrent_hidden_size": 16}
    config = small_config(tmp_path, algo, env_id="callable:Chain", total_timesteps=5_120 if algo == "ppo" else 2_560, algo_kwargs=settings)
    keep = Keep()
    result = train(config, env=Chain, callbacks=[keep])
    assert result.metrics["eval_return_mean"] == 1.0
    policy = load_policy(result.checkpoint_path)
    states = np.eye(5, dtype=np.float32)[:-1]
    np.testing.assert_array_equal(policy.predict(states)[0], 1)
    if algo == "ppo":
        with torch.no_grad():
            _, values = keep.parts.actor.network(torch.from_numpy(states))
        np.testing.assert_allclose(values.numpy(), optimal_q(0.9).max(1), atol=0.12)


@pytest.mark.parametrize("algo", ROWS)
def test_the_reference_script_learns_and_reports(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = run_example(algo, tmp_path, 1_030, monkeypatch, capsys)
    assert checkpoint.step == 1_032 and checkpoint.config.algo == algo  # 8 environments: the first step of all at or past 1,030
    # PPO: four rollouts of 256 steps, 20 epochs of one minibatch; recurrent PPO: one of 1,024, 10 epochs of two minibatches
    assert checkpoint.load_training()["run"]["updates"] == {"ppo": 80, "recurrent_ppo": 20}[algo]
