"""Recurrent PPO's update: sequences from their true state, bootstraps from the carried one, padding that teaches nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import PPO, RecurrentPPO
from rl_training.data import RolloutBuffer
from rl_training.models import Categorical, LSTMActorCritic
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.network import CoreState
from rl_training.speed.tapes import taped_recurrent_policy

pytestmark = pytest.mark.numeric

ENVS, HIDDEN = 3, 5


def network_of(**options: Any) -> LSTMActorCritic:
    torch.manual_seed(0)
    network = LSTMActorCritic((2,), Categorical(3), **{"features_dim": 4, "encoder_hidden_sizes": (), **options}, hidden_size=HIDDEN)
    with torch.no_grad():
        network.heads.policy.layers[-1].weight.mul_(100)
    return network


DEFAULTS: dict[str, Any] = {"head_hidden_sizes": (6,), "num_layers": 1}


class Played:
    """A rollout of random observations with the network really acting, and the state it held before every step."""

    def __init__(self, network: LSTMActorCritic, *, steps: int = 12, seed: int = 0, end: float = 0.2, carried: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.rollout = RolloutBuffer(steps, ENVS, (2,), seed=seed)
        self.states: list[CoreState] = []
        state = network.initial_state(ENVS)
        if carried:  # the rollout begins in the middle of episodes
            state = (torch.full_like(state[0], 0.3), torch.full_like(state[1], -0.2))
        starts, obs = np.zeros(ENVS, bool) if carried else np.ones(ENVS, bool), rng.normal(size=(ENVS, 2)).astype(np.float32)
        for _ in range(steps):
            state = network.reset_state(state, torch.from_numpy(starts))
            self.states.append(state)
            with torch.no_grad():
                outputs, after = network.step(torch.from_numpy(obs), state, torch.zeros(ENVS))
            actions = network.distribution.sample(outputs.numpy(), rng)
            final = rng.normal(size=(ENVS, 2)).astype(np.float32)
            ends = rng.random((2, ENVS)) < end / 2
            terminated, truncated = ends[0], ends[1] & ~ends[0]
            rewards = rng.normal(size=ENVS)
            self.rollout.add(
                obs=obs,
                next_obs=final,
                actions=actions,
                rewards=rewards,
                terminated=terminated,
                truncated=truncated,
                episode_starts=starts,
                initial_state=state,
            )
            starts = terminated | truncated
            obs = np.where(starts[:, None], rng.normal(size=(ENVS, 2)).astype(np.float32), final)
            state = after


@pytest.mark.parametrize("num_layers", [1, 2])
def test_values_and_probabilities_are_those_of_acting(num_layers: int) -> None:
    """The one unroll over padded sequences gives what the network gave step by step, and each V' comes from the carried state."""
    network = network_of(**{**DEFAULTS, "num_layers": num_layers})
    played = Played(network)
    rollout = played.rollout
    found = RecurrentPPO(network, 1e-3, 0.99).evaluate(rollout)
    terminated = rollout.field("terminated")
    assert rollout.field("truncated")[:-1].any() and terminated[:-1].any()
    for t, state in enumerate(played.states):
        with torch.no_grad():
            outputs, values = network(torch.from_numpy(rollout.field("obs")[t])[None], state)
            _, after = network.step(torch.from_numpy(rollout.field("obs")[t]), state, torch.zeros(ENVS))
            _, next_values = network(torch.from_numpy(rollout.field("next_obs")[t])[None], after)
            actions = torch.from_numpy(rollout.field("actions")[t])
            log_probs = network.distribution.evaluate(outputs[0], actions).log_prob
        np.testing.assert_allclose(found.values[t], values[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.log_probs[t], log_probs, rtol=1e-4, atol=1e-5)
        on = ~terminated[t]
        np.testing.assert_allclose(found.next_values[t][on], next_values[0][on], rtol=1e-4, atol=1e-5)


def test_the_ratio_is_one_in_the_first_minibatch() -> None:
    network = network_of(**DEFAULTS)
    learner = RecurrentPPO(network, 1e-3, 0.99, update_epochs=1, minibatch_size=1000)
    metrics = learner.learn(Played(network).rollout, global_step=0).metrics
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-6) and float(metrics["clip_fraction"]) == 0
    assert float(metrics["policy_loss"]) == pytest.approx(0, abs=1e-5)


def test_a_rollout_of_reset_steps_alone_teaches_nothing() -> None:
    network = network_of(**DEFAULTS)
    rollout = Played(network, steps=1).rollout
    rollout._host["valid"][:] = False
    assert RecurrentPPO(network, 1e-3, 0.99).learn(rollout, global_step=0).num_gradient_steps == 0


class FromZero(ActorCritic):
    """The recurrent network as a feed-forward one: every observation from the zero state."""

    def __init__(self, network: LSTMActorCritic) -> None:
        super().__init__()
        self.network, self.distribution = network, network.distribution

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        outputs, values = self.network(obs[None])
        return outputs[0], values[0]

    def step(self, obs: Tensor, state: Any, episode_starts: Tensor, draws: Any = None) -> tuple[Tensor, CoreState]:
        return self(obs)[0], ()


def test_sequences_of_length_one_are_the_feed_forward_update() -> None:
    """Where every step ends its episode, an LSTM is a feed-forward network, and recurrent PPO must be PPO.

    Every step terminates: a truncated one would bootstrap from the carried state, which a feed-forward network has not.
    """
    recurrent, plain = network_of(**DEFAULTS), network_of(**DEFAULTS)
    rollout = RolloutBuffer(10, ENVS, (2,))
    rng = np.random.default_rng(0)
    for _ in range(10):
        obs, next_obs = rng.normal(size=(2, ENVS, 2))
        step = {"obs": obs, "next_obs": next_obs, "actions": rng.integers(3, size=ENVS), "rewards": rng.normal(size=ENVS)}
        rollout.add(**step, terminated=True, truncated=False, episode_starts=True, initial_state=recurrent.initial_state(ENVS))
    # One minibatch: the two draw their orders differently, and a sum does not care.
    # eps = lr: beside a smaller one Adam would make much of a gradient that is only rounding (rollouts are float32).
    options: dict[str, Any] = {"update_epochs": 5, "minibatch_size": 1000, "ent_coef": 0.02, "adam_eps": 1e-2}
    first = RecurrentPPO(recurrent, 1e-2, 0.99, **options).learn(rollout, global_step=0)
    second = PPO(FromZero(plain), 1e-2, 0.99, **options).learn(rollout, global_step=0)
    assert first.num_gradient_steps == second.num_gradient_steps == 5
    for name in first.metrics:
        assert float(first.metrics[name]) == pytest.approx(float(second.metrics[name]), rel=1e-3, abs=1e-5)
    for mine, expected in zip(recurrent.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"features_dim": None}, {"encoder_hidden_sizes": (7,)}])
def test_the_gradient_is_autograds_through_time(options: dict[str, Any]) -> None:
    network = network_of(**{**DEFAULTS, **options})
    torch.manual_seed(1)
    obs = torch.randn(6, 4, 2)
    state = (torch.randn(network.core.num_layers, 4, HIDDEN), torch.randn(network.core.num_layers, 4, HIDDEN))
    on_outputs, on_values = torch.randn(6, 4, 3), torch.randn(6, 4)
    outputs, values, gradients = taped_recurrent_policy(network, obs, state)
    expected_outputs, expected_values = network(obs, state)
    torch.testing.assert_close(outputs, expected_outputs.detach())
    torch.testing.assert_close(values, expected_values.detach())
    expected = torch.autograd.grad((expected_outputs * on_outputs).sum() + (expected_values * on_values).sum(), list(network.parameters()))
    for mine, reference in zip(gradients(on_outputs, on_values), expected, strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


def test_padding_teaches_nothing() -> None:
    batch = {
        "obs": torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0)),
        "actions": torch.tensor([[0, 1], [1, 2], [2, 0], [0, 0]]),
        "log_probs": torch.full((4, 2), -1.0),
        "values": torch.zeros(4, 2),
        "advantages": torch.arange(8.0).view(4, 2),
        "returns": torch.ones(4, 2),
        "mask": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
        "initial_h": torch.randn(1, 2, HIDDEN, generator=torch.Generator().manual_seed(1)),
        "initial_c": torch.randn(1, 2, HIDDEN, generator=torch.Generator().manual_seed(2)),
    }
    results = []
    for poison in (0.0, 50.0):
        network = network_of(**DEFAULTS)
        poisoned = {name: value.clone() for name, value in batch.items()}
        for name in ("obs", "log_probs", "values", "advantages", "returns"):
            poisoned[name][2:, 1] += poison
        metrics = RecurrentPPO(network, 1e-2, 0.99, ent_coef=0.1, vf_clip=0.2).update(poisoned, global_step=0).metrics
        results.append(([parameter.clone() for parameter in network.parameters()], {name: float(metrics[name]) for name in metrics}))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert results[0][1] == pytest.approx(results[1][1])
    # ... while a step that counts does teach.
    network = network_of(**DEFAULTS)
    moved = {**batch, "returns": batch["returns"] + 50 * (1 - torch.eye(4)[:, 3:])}
    RecurrentPPO(network, 1e-2, 0.99, ent_coef=0.1, vf_clip=0.2).update(moved, global_step=0)
    assert not all(torch.equal(a, b) for a, b in zip(results[0][0], network.parameters(), strict=True))


def test_the_minibatches_of_an_epoch_hold_every_step_once() -> None:
    network = network_of(**DEFAULTS)
    learner = RecurrentPPO(network, 1e-3, 0.99, update_epochs=2, minibatch_size=12)
    rollout = Played(network).rollout
    found = learner.evaluate(rollout)
    items = rollout.items(log_probs=found.log_probs, values=found.values)
    batches = list(learner.view(rollout).minibatches(items, 12, epochs=2))
    assert sum(float(batch["mask"].sum()) for batch in batches) == 2 * 12 * ENVS
    for batch in batches:  # what acting gave is what the unroll from the initial state gives, minibatch by minibatch
        outputs, values = learner.forward(batch)
        real = batch["mask"] > 0
        torch.testing.assert_close(values[real], batch["values"][real], rtol=1e-4, atol=1e-5)
        log_probs = network.distribution.evaluate(outputs, batch["actions"]).log_prob
        torch.testing.assert_close(log_probs[real], batch["log_probs"][real], rtol=1e-4, atol=1e-5)


def test_the_carried_state_matters() -> None:
    """The same rollout, begun from another state, has other values in its first stretch and the same ones after an episode's start."""
    network = network_of(**DEFAULTS)
    played = Played(network, end=0.5)
    learner = RecurrentPPO(network, 1e-3, 0.99)
    before = learner.evaluate(played.rollout).values.copy()
    h, c = played.rollout._initial_state
    played.rollout._initial_state = (h + 1, c)
    after = learner.evaluate(played.rollout).values
    starts = played.rollout.field("episode_starts").cumsum(0) > 0
    assert starts.any() and (before[0] != after[0]).all()
    np.testing.assert_array_equal(before[starts], after[starts])
