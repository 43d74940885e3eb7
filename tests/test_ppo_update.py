"""PPO's update: against a plain autograd version, and the properties that go wrong silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import PPO
from rl_training.data import RolloutBuffer, generalized_advantages
from rl_training.models import Categorical, DiagonalGaussian, MLPActorCritic, MultiCategorical
from rl_training.models.actor_critic import ActorCritic
from rl_training.speed.hand_policy import HandGradient, use_hand_gradients

pytestmark = pytest.mark.numeric

DISTRIBUTIONS: dict[str, Any] = {
    "categorical": Categorical(3),
    "multi": MultiCategorical([3, 2]),
    "gaussian": DiagonalGaussian(np.array([-1.0, -1.0]), np.array([1.0, 1.0]), (2,)),
}


def network_of(kind: str = "categorical", **options: Any) -> MLPActorCritic:
    torch.manual_seed(0)
    network = MLPActorCritic(4, DISTRIBUTIONS[kind], (8, 6), **options)
    with torch.no_grad():  # away from the nearly uniform start, where a wrong sign would hardly show
        network.heads.policy.layers[-1].weight.mul_(100)
    return network


def rollout_of(network: ActorCritic, steps: int = 12, envs: int = 3, seed: int = 0) -> RolloutBuffer:
    """Random observations and rewards, actions from the policy, episodes that end in both ways."""
    rng = np.random.default_rng(seed)
    distribution = network.distribution
    rollout = RolloutBuffer(steps, envs, (4,), distribution.action_shape, seed=seed, action_dtype=distribution.action_dtype)
    for _ in range(steps):
        obs, next_obs = rng.normal(size=(2, envs, 4)).astype(np.float32)
        with torch.no_grad():
            outputs, _ = network.step(torch.from_numpy(obs), (), torch.zeros(envs))
        ends = rng.random((2, envs)) < 0.15
        rollout.add(
            obs=obs,
            next_obs=next_obs,
            actions=distribution.sample(outputs.numpy(), rng),
            rewards=rng.normal(size=envs),
            terminated=ends[0],
            truncated=ends[1] & ~ends[0],
        )
    return rollout


def batch_of(network: ActorCritic, size: int = 32, seed: int = 1) -> dict[str, Tensor]:
    """A minibatch whose old policy is somewhere else, so that some ratios are clipped."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    obs = torch.randn(size, 4, generator=generator)
    with torch.no_grad():
        outputs, values = network(obs)
        actions = torch.from_numpy(network.distribution.sample(outputs.numpy(), rng))
        log_probs = network.distribution.evaluate(outputs, actions).log_prob
    old = 0.3 * torch.randn(size, generator=generator)
    return {
        "obs": obs,
        "actions": actions,
        "log_probs": log_probs + old,
        "values": values + torch.randn(size, generator=generator),
        "advantages": torch.randn(size, generator=generator),
        "returns": torch.randn(size, generator=generator),
    }


def plain_loss(network: ActorCritic, batch: dict[str, Tensor], *, clip: float, ent: float, vf: float, vf_clip: float | None) -> Tensor:
    """PPO's loss as the paper writes it, for autograd."""
    outputs, values = network(batch["obs"])
    policy = network.distribution.evaluate(outputs, batch["actions"])
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    ratio = (policy.log_prob - batch["log_probs"]).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
    error = (values - batch["returns"]) ** 2
    if vf_clip is not None:
        near = batch["values"] + (values - batch["values"]).clamp(-vf_clip, vf_clip)
        error = torch.max(error, (near - batch["returns"]) ** 2)
    return -surrogate + vf * error.mean() - ent * policy.entropy.mean()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("vf_clip", [None, 0.2])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_an_update_is_autograd_and_adams(kind: str, activation: Any, vf_clip: float | None) -> None:
    network, reference = network_of(kind, activation=activation), network_of(kind, activation=activation)
    learner = PPO(network, 1e-2, 0.99, clip_coef=0.2, ent_coef=0.03, vf_coef=0.7, vf_clip=vf_clip, max_grad_norm=0.5)
    optimizer = torch.optim.Adam(reference.parameters(), 1e-2, eps=1e-5)
    for seed in range(3):
        batch = batch_of(reference, seed=seed)
        loss = plain_loss(reference, batch, clip=0.2, ent=0.03, vf=0.7, vf_clip=vf_clip)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        result = learner.update(batch, global_step=0)
        torch.testing.assert_close(result.metrics["loss"], loss.detach())
        assert result.num_gradient_steps == 1
        optimizer.step()
    for mine, expected in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_gradient_by_hand_learns_the_same(kind: str) -> None:
    networks = [network_of(kind), network_of(kind)]
    batch = batch_of(networks[0])
    learners = [PPO(network, 1e-2, 0.99, ent_coef=0.01, vf_clip=0.2) for network in networks]
    use_hand_gradients(learners[1])
    assert isinstance(learners[1].gradient, HandGradient)
    for learner in learners:
        learner.update(batch, global_step=0)
    for mine, expected in zip(*[network.parameters() for network in networks], strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_ratio_is_one_in_the_first_minibatch(kind: str) -> None:
    network = network_of(kind)
    rollout = rollout_of(network)
    learner = PPO(network, 1e-3, 0.99, update_epochs=1, minibatch_size=1000)
    metrics = learner.learn(rollout, global_step=0).metrics
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-6) and float(metrics["clip_fraction"]) == 0
    # with ρ = 1 the surrogate is −mean of the normalised advantages, which is 0
    assert float(metrics["policy_loss"]) == pytest.approx(0, abs=1e-5)
    again = learner.learn(rollout, global_step=0)  # the same actions under the new policy as the old one: 1 again
    assert float(again.metrics["approx_kl"]) == pytest.approx(0, abs=1e-6)


def test_a_rollouts_values_come_from_where_its_actions_led() -> None:
    """V' is the next step's V within an episode, V of the true final observation at a truncation and at the rollout's end."""
    network = network_of()
    rollout = rollout_of(network, steps=20)
    found = PPO(network, 1e-3, 0.99).evaluate(rollout)
    with torch.no_grad():
        values = network(torch.from_numpy(rollout.field("obs")))[1].numpy()
        final = network(torch.from_numpy(rollout.field("next_obs")))[1].numpy()
    np.testing.assert_allclose(found.values, values, rtol=1e-5, atol=1e-6)
    truncated, terminated = rollout.field("truncated"), rollout.field("terminated")
    assert truncated[:-1].any() and terminated[:-1].any()
    for t in range(20):
        for env in range(3):
            if not terminated[t, env]:
                expected = final[t, env] if truncated[t, env] or t == 19 else values[t + 1, env]
                assert found.next_values[t, env] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_learn_makes_the_epochs_and_minibatches_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of()
    rollout = rollout_of(network)  # 36 steps
    learner = PPO(network, 1e-3, 0.99, gae_lambda=0.8, update_epochs=4, minibatch_size=10)
    seen: list[dict[str, Tensor]] = []
    original = learner._gradient_step

    def watch(batch: Any, global_step: int) -> Any:
        seen.append({name: value.clone() for name, value in batch.items()})
        return original(batch, global_step)

    monkeypatch.setattr(learner, "_gradient_step", watch)
    found = learner.evaluate(rollout)
    result = learner.learn(rollout, global_step=7)
    assert result.num_gradient_steps == 16 and [len(batch["obs"]) for batch in seen[:4]] == [9, 9, 9, 9]
    terminated, truncated = rollout.field("terminated"), rollout.field("truncated")
    advantages = generalized_advantages(
        rollout.field("rewards"), found.values, found.next_values, terminated, terminated | truncated, gamma=0.99, gae_lambda=0.8
    )
    by_obs = {
        tuple(obs): (a, v) for obs, a, v in zip(rollout.field("obs").reshape(-1, 4), advantages.ravel(), found.values.ravel(), strict=True)
    }
    for obs, advantage, value, target in zip(*(seen[5][key] for key in ("obs", "advantages", "values", "returns")), strict=True):
        assert by_obs[tuple(obs.numpy())] == (float(advantage), float(value))
        assert float(target) == pytest.approx(float(advantage) + float(value))
    returns = advantages + found.values
    expected = 1 - (returns - found.values).var() / returns.var()
    assert float(result.metrics["explained_variance"]) == pytest.approx(expected, rel=1e-5)
    assert set(result.metrics) == set(result.metrics.NAMES)  # type: ignore[attr-defined]
    assert all(np.isfinite(float(value)) for value in result.metrics.values())


def test_schedules_run_over_environment_steps() -> None:
    network = network_of()
    learner = PPO(network, lambda step: 0.0, 0.99, clip_coef=lambda step: 0.5 - step / 100)
    assert learner.current_clip(30) == pytest.approx(0.2) and learner.current_learning_rate(30) == 0.0
    before = [parameter.clone() for parameter in network.parameters()]
    batch = batch_of(network)
    fractions = [float(learner.update(batch, global_step=step).metrics["clip_fraction"]) for step in (0, 45)]
    assert fractions[0] < fractions[1]  # the clip falls from 0.5 to 0.05
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))  # and the rate is 0


def test_the_epochs_stop_where_the_policy_has_moved_too_far() -> None:
    results = {}
    for target in (None, 1e-3):
        network = network_of()
        learner = PPO(network, 5e-2, 0.99, update_epochs=10, minibatch_size=12, target_kl=target)
        results[target] = learner.learn(rollout_of(network), global_step=0).num_gradient_steps
    assert results[None] == 30 and 1 <= results[1e-3] < 30
    # Beyond 1.5 times the target nothing is stepped at all.
    network = network_of()
    before = [parameter.clone() for parameter in network.parameters()]
    result = PPO(network, 1e-2, 0.99, target_kl=1e-6).update(batch_of(network), global_step=0)
    assert result.num_gradient_steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_a_reset_step_teaches_nothing() -> None:
    """A step that is not valid must reach no minibatch, whatever it holds."""
    parameters = []
    for poison in (0.0, 1e6):
        network = network_of()
        rollout = rollout_of(network)
        rollout._host["valid"][5, 1] = False
        rollout._host["truncated"][4, 1] = True  # the episode that ended before it
        rollout._host["terminated"][4, 1] = False
        rollout._host["rewards"][5, 1] = poison
        PPO(network, 1e-2, 0.99, minibatch_size=7).learn(rollout, global_step=0)
        parameters.append([parameter.clone() for parameter in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*parameters, strict=True))


def test_initialisation_is_orthogonal() -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(4, DISTRIBUTIONS["gaussian"], (16, 16), log_std_init=-0.5)
    for stream, last in ((network.heads.policy, 0.01), (network.heads.value, 1.0)):
        for layer, gain in zip(stream.layers, (2**0.5, 2**0.5, last), strict=True):
            weight = layer.weight.detach()
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-5, rtol=1e-5)
            assert not layer.bias.any()
    assert network.heads.log_std is not None and network.heads.log_std.tolist() == [-0.5, -0.5]


def test_state_goes_round() -> None:
    network = network_of("gaussian")
    learner = PPO(network, 1e-2, 0.99)
    learner.update(batch_of(network), global_step=0)
    other = PPO(network_of("gaussian"), 1e-2, 0.99)
    other.load_state_dict(learner.state_dict())
    batch = batch_of(network, seed=5)
    for each in (learner, other):
        each.update(batch, global_step=0)
    for a, b in zip(network.parameters(), other.actor_critic.parameters(), strict=True):
        assert torch.equal(a, b)
