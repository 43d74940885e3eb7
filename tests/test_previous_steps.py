"""Previous action and reward before the core: on images they do not join the observation, they ride beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms import RecurrentPPO
from rl_training.algorithms.sequence_view import previous_steps
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.storage import Field
from rl_training.envs import make_envs
from rl_training.errors import ConfigError, SpaceError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.models import make_distribution
from rl_training.models.image_torsos import MinAtarTorso
from rl_training.models.recurrent import (
    GRUCore,
    LSTMCore,
    RecurrentActorCritic,
    RecurrentQNetwork,
    recurrent_actor_critic_parts,
    recurrent_q_parts,
)
from rl_training.runtime import drqn_trainer
from rl_training.runtime.accelerate import accelerate_learner
from rl_training.runtime.actor import Actor, RolloutFeed
from rl_training.runtime.behaviour import EpsilonGreedy, Sampling
from rl_training.runtime.trainer_setup import prepare
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, predict, resume_training, train
from rl_training.types import NO_ACTION, Previous

SHAPE = (1, 5, 5)
SIZES: dict[str, Any] = {"features_dim": 6, "encoder_hidden_sizes": [], "head_hidden_sizes": [], "hidden_size": 7, "num_layers": 1}


class Lever(gym.Env[Any, int]):
    """A blank image, and one lever of two that pays: which, is said by the first reward alone. Eight pulls an episode."""

    observation_space = gym.spaces.Box(0, 255, (5, 5), np.uint8)
    action_space = gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._pays, self._time = int(self.np_random.integers(2)) + 1, 0
        return np.zeros((5, 5), np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.zeros((5, 5), np.uint8), float(action == self._pays), self._time == 8, False, {}


def network(core: Any = LSTMCore, skip: bool = False) -> RecurrentQNetwork:
    torch.manual_seed(0)
    parts = recurrent_q_parts(SHAPE, 3, torso=MinAtarTorso(SHAPE), make_core=core, skip=skip, previous_actions=3, **SIZES)
    return RecurrentQNetwork(*parts, skip=skip, obs_ndim=3, previous_actions=3)


def inputs(time: int = 4, batch: int = 2) -> tuple[torch.Tensor, Previous]:
    images = torch.randint(0, 256, (time, batch, *SHAPE), dtype=torch.uint8)
    return images, Previous(torch.randint(-1, 3, (time, batch)), torch.randn(time, batch))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("core", [LSTMCore, GRUCore])
def test_the_core_reads_them_beside_the_features(core: Any, skip: bool) -> None:
    """By hand: features, one-hot and reward side by side into the core; step by step and at once."""
    net = network(core, skip)
    images, previous = inputs()
    features = net.encoder(images.flatten(0, 1)).unflatten(0, (4, 2))
    one_hot = torch.zeros(4, 2, 3)
    for t, b in np.ndindex(4, 2):
        if previous.actions[t, b] != NO_ACTION:
            one_hot[t, b, previous.actions[t, b]] = 1
    wanted, _ = net.core(torch.cat([features, one_hot, previous.rewards[..., None]], -1), net.initial_state(2))
    wanted = torch.cat([wanted, features], -1) if skip else wanted
    found, last = net.unroll_core(images, net.initial_state(2), previous=previous)
    torch.testing.assert_close(found, wanted)
    state, starts = net.initial_state(2), torch.zeros(2, dtype=torch.bool)
    for t in range(4):
        q, state = net.step(images[t], state, starts, previous=Previous(previous.actions[t], previous.rewards[t]))
        torch.testing.assert_close(q, net.head.q_values(net.head(found[t])))
    for part, other in zip(state, last, strict=True):
        torch.testing.assert_close(part, other)
    nothing = Previous(torch.full((4, 2), NO_ACTION), torch.zeros(4, 2))
    torch.testing.assert_close(net.unroll_core(images, state)[0], net.unroll_core(images, state, previous=nothing)[0])


def test_within_a_chunk_it_is_the_step_before() -> None:
    """Two chunks of three steps: the first goes on from elsewhere (stored: action 2, reward .5), in the second an episode starts at 1."""
    batch = {
        "actions": torch.tensor([[0, 1], [1, 2], [2, 0]]),
        "rewards": torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        "episode_starts": torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
        "previous_actions": torch.tensor([[2, NO_ACTION], [0, NO_ACTION], [1, 2]]),
        "previous_rewards": torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.3, 0.4]]),
    }
    found = previous_steps(batch)
    assert found is not None
    assert found.actions.tolist() == [[2, -1], [0, -1], [1, 2], [2, 0]]
    torch.testing.assert_close(found.rewards, torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.3, 0.4], [0.5, 0.6]]))
    assert previous_steps({key: value for key, value in batch.items() if not key.startswith("previous")}) is None


def config(tmp_path: Path, algo: str, steps: int = 200, num_envs: int = 2, **settings: Any) -> TrainConfig:
    return TrainConfig(
        algo=algo,
        env_id="callable:Lever",
        seed=3,
        total_timesteps=steps,
        output_dir=tmp_path,
        device="cpu",
        num_envs=num_envs,
        eval_episodes=2,
        eval_interval=0,
        log_interval=0,
        checkpoint_interval=0,
        algo_kwargs={"previous_action_reward": True, "features_dim": 8, "recurrent_hidden_size": 16, **settings},
    )


SEQUENCES: dict[str, Any] = {"learning_starts": 50, "batch_size": 4, "buffer_capacity": 400, "sequence_length": 5}
CASES = [
    ("drqn", SEQUENCES),
    ("r2d2", {**SEQUENCES, "burn_in": 2, "sequence_overlap": 2, "n_step": 2}),
    ("recurrent_ppo", {"num_steps": 30, "minibatch_size": 30, "update_epochs": 2}),
]


class Counted(Lever):
    """The reward numbers the steps of an episode, from 1."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        image, _, terminated, truncated, info = super().step(action)
        return image, float(self._time), terminated, truncated, info


def acting(tmp_path: Path, algo: str, settings: Any) -> tuple[Actor, Any]:
    setup = prepare(config(tmp_path, algo, **settings), Counted)
    behaviour = EpsilonGreedy(lambda _: 0.5, num_actions=2, learning_starts=0, seed=0)
    parts = drqn_trainer.build_parts(setup)
    return Actor(setup.envs, parts.network, parts.feed, behaviour=behaviour, device=setup.device, seed=0), parts.replay


@pytest.mark.parametrize(("algo", "settings"), CASES[:2])
def test_what_is_stored_is_what_was_acted_on(tmp_path: Path, algo: str, settings: Any) -> None:
    """A step's reward is its number in the episode, so what led to it gave one less: nothing before the first."""
    actor, replay = acting(tmp_path, algo, settings)
    seen: list[tuple[Any, Previous]] = []
    step = actor.network.step

    def recorded(obs: Any, state: Any, starts: Any, draws: Any, previous: Previous) -> Any:
        seen.append((starts.clone(), previous))
        return step(obs, state, starts, draws, previous)

    actor.network.step = recorded  # type: ignore[misc]
    for t in range(60):
        actor.step(t)
    actor.feed.flush()
    for t, (starts, previous) in enumerate(seen):
        assert previous.rewards.tolist() == [t % 8] * 2 and starts.tolist() == [t % 8 == 0] * 2
        assert all((action == NO_ACTION) == bool(start) for action, start in zip(previous.actions, starts, strict=True))
    batch = replay.sample(64)
    valid = batch["rewards"] > 0  # elsewhere is padding
    torch.testing.assert_close(batch["previous_rewards"][valid], batch["rewards"][valid] - 1)
    assert bool((batch["previous_actions"][valid] == NO_ACTION).eq(batch["rewards"][valid] == 1).all())
    later = valid[1:] & (batch["rewards"][1:] > 1) & valid[:-1]
    assert torch.equal(batch["previous_actions"][1:][later], batch["actions"][:-1][later])
    led = previous_steps(batch)
    assert led is not None
    torch.testing.assert_close(led.rewards[:-1][valid], batch["previous_rewards"][valid])
    torch.testing.assert_close(led.rewards[1:][valid], batch["rewards"][valid])  # the observation after a step was led to by it
    actor.envs.close()


def test_a_rollout_is_unrolled_with_what_was_acted_on() -> None:
    """Log-probabilities of the whole rollout at once equal those of acting step by step; and the gradient's pass gives them again."""
    torch.manual_seed(0)
    distribution = make_distribution({"kind": "discrete", "n": 2})
    parts = recurrent_actor_critic_parts((1, 5, 5), distribution, torso=MinAtarTorso((1, 5, 5)), previous_actions=2, **SIZES)
    net = RecurrentActorCritic(*parts, previous_actions=2)
    with torch.no_grad():
        net.heads.policy.layers[-1].weight.mul_(100)  # it starts nearly uniform: that would hide a difference
    envs = make_envs(Counted, num_envs=2, seed=0)
    fields = {"previous_actions": Field((), torch.int64), "previous_rewards": Field((), torch.float32)}
    rollout = RolloutBuffer(13, 2, (1, 5, 5), obs_dtype="uint8", extra=fields)
    actor = Actor(envs, net, RolloutFeed(rollout), behaviour=Sampling(distribution, seed=0), device=torch.device("cpu"), seed=0)
    outputs: list[Any] = []
    step = net.step

    def recorded(*args: Any) -> Any:
        found = step(*args)
        outputs.append(found[0])
        return found

    net.step = recorded  # type: ignore[method-assign]
    for t in range(3):  # so that the rollout begins inside an episode
        actor.step(t)
    outputs.clear()
    rollout.clear()
    for t in range(13):
        actor.step(t)
    acted = distribution.evaluate(torch.stack(outputs), torch.from_numpy(rollout.field("actions"))).log_prob
    learner = RecurrentPPO(net, learning_rate=0.0, gamma=0.9, update_epochs=1, minibatch_size=100)
    found = learner.evaluate(rollout)
    np.testing.assert_allclose(found.log_probs, acted.detach().numpy(), rtol=1e-4, atol=1e-5)
    for speed in (False, True):  # the heads' gradient by hand reads them too
        if speed:
            accelerate_learner(learner)
        metrics = learner.learn(rollout, global_step=0).metrics
        assert abs(float(metrics["approx_kl"])) < 1e-6 and float(metrics["clip_fraction"]) == 0
    envs.close()


@pytest.mark.parametrize(("algo", "settings"), CASES)
def test_resumed_is_uninterrupted(tmp_path: Path, algo: str, settings: Any) -> None:
    whole = train(config(tmp_path / "whole", algo, **settings), env=Lever)
    half = train(config(tmp_path / "half", algo, steps=102, **settings).replace(schedule_timesteps=200), env=Lever)
    resumed = resume_training(half.run_dir, total_timesteps=200, env=Lever)
    for name in ("model.safetensors", "training.safetensors", "replay.safetensors"):
        assert (whole.checkpoint_path / name).read_bytes() == (resumed.checkpoint_path / name).read_bytes(), name


def test_predict_is_told_what_led_there(tmp_path: Path) -> None:
    result = train(config(tmp_path, "drqn", **SEQUENCES), env=Lever)
    policy, image = load_policy(result.checkpoint_path), np.zeros((5, 5), np.uint8)
    action, state = policy.predict(image)
    assert action in (1, 2)  # as the environment counts
    with pytest.raises(UserError, match=r"give previous=\(actions, rewards\) beside the state"):
        policy.predict(image, state)
    found = [policy.outputs(image, state, previous=previous)[0] for previous in ((1, 0.0), (2, 0.0), (1, 1.0))]
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    again = policy.outputs(image, state, [True], previous=(2, 5.0))[0]  # an episode starts: nothing led here
    np.testing.assert_array_equal(again, policy.outputs(image)[0])
    with pytest.raises(UserError, match="previous must be"):
        policy.predict(image, state, previous=([1, 2, 3], 0.0))
    for action in (0, 3):  # 0 would be no action at all to the network, which counts from 0
        with pytest.raises(UserError, match=rf"^previous must have actions from 1 to 2, got \({action}, 0.0\)$"):
            policy.predict(image, state, previous=(action, 0.0))
    with pytest.raises(UserError, match="previous must have finite rewards"):
        policy.predict(image, state, previous=(1, float("nan")))
    lines = [{"obs": image.tolist(), "episode_start": True}, {"obs": image.tolist(), "reward": 1.0}]
    first, second = predict(result.checkpoint_path, lines)
    expected = policy.outputs(image, policy.predict(image)[1], previous=(first["action"], 1.0))[0]
    np.testing.assert_allclose(second["q_values"], expected, rtol=1e-6)
    with pytest.raises(UserError, match=r'observation 2 has no reward, .*: \{"obs": …, "reward": 1.0\}'):
        list(predict(result.checkpoint_path, [lines[0], image.tolist()]))
    with pytest.raises(UserError, match="observation 1 has a reward that is no finite number"):
        list(predict(result.checkpoint_path, [{"obs": image.tolist(), "reward": "much"}]))
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=2, env=Lever)["eval_episodes"] == 2


def test_a_row_that_does_not_read_them_refuses_them(tmp_path: Path) -> None:
    result = train(config(tmp_path, "drqn", **{**SEQUENCES, "previous_action_reward": False}), env=Lever)
    with pytest.raises(UserError, match="this one does not read it"):
        load_policy(result.checkpoint_path).predict(np.zeros((5, 5), np.uint8), previous=(1, 0.0))


@pytest.mark.parametrize(
    ("algo", "changes", "error", "message"),
    [
        ("drqn", {"env_kwargs": {"wrappers": ["normalize_reward"]}}, ConfigError, "reads rewards as they are, and normalize_reward"),
        ("drqn", {"env_kwargs": {"wrappers": ["append_action_reward"]}}, SpaceError, "not for images; .*previous_action_reward: true"),
        ("recurrent_ppo", {"env_id": "Pendulum-v1"}, ConfigError, "needs Discrete actions, and this environment's are box"),
        ("dqn", {}, ConfigError, "previous_action_reward is not a key of dqn"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, algo: str, changes: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        made = config(tmp_path, algo) if algo != "dqn" else config(tmp_path, "dqn")
        made = made.replace(**changes)
        train(made, env=None if "env_id" in changes else Lever)
    assert not list(tmp_path.iterdir())


def test_a_buffer_declares_them_and_nothing_else_does(tmp_path: Path) -> None:
    settings = {**SEQUENCES, "previous_action_reward": False}
    for on, extra in ((True, {"previous_actions", "previous_rewards"}), (False, set())):
        setup = prepare(config(tmp_path, "drqn", **{**settings, "previous_action_reward": on}), Lever)
        assert set(drqn_trainer.build_parts(setup).replay.extra) == extra  # type: ignore[attr-defined]
        setup.envs.close()
