"""What a CUDA graph replays of PPO and PQN, run here without capture: fixed tensors with a mask instead of each minibatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import PPO, PQN, RecurrentPQN
from rl_training.data import RolloutBuffer, rollout_buffer
from rl_training.experiment.config import TrainConfig
from rl_training.models import LSTMQNetwork, MLPQNetwork
from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.build import build_q_network
from rl_training.models.distributions import Categorical
from rl_training.models.image_torsos import MinAtarTorso
from rl_training.runtime.accelerate import accelerate_learner
from rl_training.runtime.workflows import train
from rl_training.speed.graphs import GraphedForward
from rl_training.speed.rollout_graphs import GraphedStep, use_graphed_steps

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
STEPS, ENVS = 12, 3
OPTIONS: dict[str, Any] = {"update_epochs": 2, "minibatch_size": 8}


def falling(start: float) -> Callable[[int], float]:
    return lambda step: start * (1 - step / 200)


def pqn_on_vectors() -> PQN:
    return PQN(MLPQNetwork(4, 3, (8, 6), layer_norm=True), falling(1e-2), 0.9, **OPTIONS)


def pqn_on_images() -> PQN:
    torso = MinAtarTorso((2, 5, 5), layer_norm=True)
    return PQN(build_q_network((2, 5, 5), 3, hidden_sizes=(8,), torso=torso, layer_norm=True), falling(1e-2), 0.9, **OPTIONS)


def ppo_on_vectors() -> PPO:
    network = MLPActorCritic(4, Categorical(3), (8, 8))
    return PPO(network, falling(1e-2), 0.9, clip_coef=falling(0.2), vf_clip=0.2, ent_coef=0.01, **OPTIONS)


def rollout_of(images: bool, seed: int) -> RolloutBuffer:
    """36 steps, of which two are reset steps: 34 in five parts of 7, 7, 7, 7 and 6."""
    rng, shape = np.random.default_rng(seed), (2, 5, 5) if images else (4,)
    rollout = RolloutBuffer(STEPS, ENVS, shape, obs_dtype=torch.uint8 if images else torch.float32, seed=seed)
    for t in range(STEPS):
        obs = [rng.integers(2, size=(ENVS, *shape)) if images else rng.normal(size=(ENVS, *shape)) for _ in range(2)]
        ends = rng.random((2, ENVS)) < 0.15
        rollout.add(
            obs=obs[0],
            next_obs=obs[1],
            actions=rng.integers(3, size=ENVS),
            rewards=rng.normal(size=ENVS),
            terminated=ends[0],
            truncated=ends[1] & ~ends[0],
            valid=[t not in (3, 7), True, True],
        )
    return rollout


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("make", [pqn_on_vectors, pqn_on_images, ppo_on_vectors])
def test_a_graphed_step_is_the_eager_one(make: Callable[[], Any], by_hand: bool) -> None:
    torch.manual_seed(0)
    eager, graphed = make(), make()
    graphed.load_state_dict(eager.state_dict())
    for learner in (eager, graphed):
        if by_hand:
            accelerate_learner(learner)
    use_graphed_steps(graphed, STEPS * ENVS, CPU)
    assert isinstance(graphed.gradient_step, GraphedStep)
    for round_ in range(4):
        rollouts = [rollout_of(make is pqn_on_images, round_) for _ in range(2)]
        theirs, mine = (learner.learn(each, global_step=20 * round_) for learner, each in zip((eager, graphed), rollouts, strict=True))
        assert mine.num_gradient_steps == theirs.num_gradient_steps == 10
        assert list(mine.metrics) == list(theirs.metrics)
        # the learning rate is a float32 tensor here, and means are taken with a mask
        torch.testing.assert_close(dict(mine.metrics), dict(theirs.metrics), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(graphed.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-5)


def test_what_is_reported_is_not_written_over_by_the_next_step() -> None:
    learner = pqn_on_vectors()
    use_graphed_steps(learner, STEPS * ENVS, CPU)
    batch = {"obs": torch.randn(5, 4), "actions": torch.zeros(5, dtype=torch.int64), "returns": torch.arange(5.0)}
    first = learner.gradient_step(batch, 1e-3)
    kept = [first.chosen.clone(), first.returns.clone()]
    learner.gradient_step({**batch, "obs": torch.randn(5, 4), "returns": torch.zeros(5)}, 1e-3)
    assert first.chosen.shape == (5,) and torch.equal(first.chosen, kept[0]) and torch.equal(first.returns, kept[1])


def test_minibatches_of_one_shape_that_ask_nothing_are_graphed() -> None:
    stops = PPO(MLPActorCritic(4, Categorical(3), (8,)), 1e-3, 0.9, target_kl=0.01)
    sequences = RecurrentPQN(LSTMQNetwork((4,), 3, 4, (), (), 5, 1), 1e-3, 0.9)
    for learner in (stops, sequences):
        use_graphed_steps(learner, STEPS * ENVS, CPU)
        assert learner.gradient_step == learner.eager_step


@pytest.mark.parametrize("algo", ["pqn", "ppo", "recurrent_pqn"])
def test_a_run_trains_with_graphs_as_without(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"num_steps": 16, "minibatch_size": 20, "update_epochs": 2, "hidden_sizes": [8]}
    settings |= {"recurrent_hidden_size": 8} if algo == "recurrent_pqn" else {}
    config = TrainConfig(
        algo=algo,
        env_id="CartPole-v1",
        seed=1,
        num_envs=3,
        device="cpu",
        algo_kwargs=settings,
        output_dir=str(tmp_path),
        eval_interval=0,
        eval_episodes=2,
        total_timesteps=300,
        log_interval=0,
    )
    eager = train(config)
    monkeypatch.setattr(
        "rl_training.runtime.rollout_based.accelerate_rollouts", lambda learner, steps, **_: use_graphed_steps(learner, steps, CPU)
    )
    monkeypatch.setattr(
        "rl_training.runtime.rollout_based.accelerate_acting",
        lambda actor, **_: actor.use_forward(lambda *parts: GraphedForward(*parts, device=CPU)),
    )
    graphed = train(config)
    assert graphed.metrics["num_updates"] == eager.metrics["num_updates"] > 20
    assert graphed.metrics["eval_return_mean"] == eager.metrics["eval_return_mean"]


def test_a_rollout_goes_to_the_device_once_and_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(len(tensor))
        return tensor.clone()

    monkeypatch.setattr(rollout_buffer, "_to_device", copied)
    rollout = RolloutBuffer(2, 1, (1,))
    for value in (1.0, 2.0):
        fields = {"actions": [0], "rewards": [0.0], "terminated": [False], "truncated": [False]}
        rollout.add(obs=[[value]], next_obs=[[value + 1]], **fields)
        assert rollout.sent("obs").flatten().tolist() == [1.0, 2.0][: len(rollout)] and rollout.sent("obs") is rollout.items()["obs"]
    assert sent == [1, 1, 2, 2]  # obs and actions
    saved = rollout.state_dict()
    rollout.clear()
    rollout.add(obs=[[7.0]], next_obs=[[8.0]], **fields)
    assert rollout.sent("obs").flatten().tolist() == [7.0]
    rollout.load_state_dict(saved)
    assert rollout.sent("obs").flatten().tolist() == [1.0, 2.0]
