"""Action masks on the learning side: in replay, in what is bootstrapped from, in PPO's distribution, and in whole runs of every row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from masked_tasks import Guarded, GuardedPair, guarded, guarded_image
from rl_training.algorithms import PPO
from rl_training.algorithms.schedules import LinearSchedule
from rl_training.data import RolloutBuffer, sampled_ring, samplers, storage
from rl_training.data.storage import Field
from rl_training.envs.wrappers import ignore_action_masks
from rl_training.errors import CheckpointError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.models import Categorical, MLPActorCritic, MultiCategorical
from rl_training.models.distributions import allowed_logits
from rl_training.runtime.accelerate import CompilingUpdates
from rl_training.runtime.behaviour import allowed_outputs
from rl_training.runtime.off_policy import SampledUpdates
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training, train
from rl_training.speed import ahead_of_time, hand_policy
from rl_training.speed.ahead_of_time import Compiled, trace
from rl_training.speed.graphs import GraphedUpdates
from rl_training.speed.hand_policy import use_hand_gradients
from value_rows import LEARNED, ROWS, parts_of

CPU = torch.device("cpu")


# Replay and bootstrap.


def masks_of(obs: Tensor) -> Tensor:
    """What observations of `Guarded` [..., 6] allow, [..., 4]."""
    place = obs.argmax(-1)
    return torch.stack([place > 0, place % 2 == 0, torch.ones_like(place, dtype=torch.bool), torch.zeros_like(place, dtype=torch.bool)], -1)


def masked_parts(algo: str) -> Any:
    """Parts with steps of `guarded` in the replay, and a network that values the action that is never allowed most: 50 above the others."""
    parts = parts_of(algo, guarded)
    networks = parts.learner.q_network, parts.learner.target_network
    for network in networks:
        last = network.head.advantage.layers[-1]
        bias = last.bias if last.bias is not None else last.bias_mu
        with torch.no_grad():
            bias.view(4, -1)[3] += torch.linspace(0, 50, bias.numel() // 4) if algo in ("c51_dqn", "rainbow_dqn") else 50
    return parts


@pytest.mark.parametrize("algo", ROWS)
def test_what_replay_gives_is_masked_by_the_observation_it_bootstraps_from(algo: str) -> None:
    parts = masked_parts(algo)
    batch = parts.replay.sample(64)
    mask, dones = batch.get("mask", torch.ones_like(batch["rewards"])).bool(), batch["dones"].bool()
    masks, expected = batch["next_action_masks"], masks_of(batch["next_obs"])
    bootstraps = mask & ~dones
    assert torch.equal(masks[bootstraps], expected[bootstraps]) and bool(masks[mask & dones].all())
    assert bool((mask & dones).any()) and bool(bootstraps.any())
    assert ("action_masks" in batch) == parts.learner.backup.needs_current
    if "action_masks" in batch:
        assert torch.equal(batch["action_masks"][mask], masks_of(batch["obs"])[mask])
    # Rewards are at most 1 and the allowed values small: with γ < 1 and n ≤ 3 no target is near 1 + .9·50 but by the forbidden action.
    td, _ = parts.learner.td_loss(batch)
    valid = mask[-len(td.target_value) :]
    assert float(td.target_value[valid].max()) < 10
    unmasked, _ = parts.learner.td_loss({name: value for name, value in batch.items() if name != "next_action_masks"})
    assert float(unmasked.target_value[valid].max()) > 20


@pytest.mark.parametrize("algo", ["munchausen_dqn", "r2d2"])
def test_masks_stay_with_their_images(algo: str) -> None:
    """Frames are stored once and gathered when sampled: a mask must name what is gathered."""
    parts = parts_of(algo, guarded_image, algo_kwargs={"buffer_capacity": 200})  # the ring has gone around
    batch = parts.replay.sample(64)
    mask, dones = batch.get("mask", torch.ones_like(batch["rewards"])).bool(), batch["dones"].bool()
    newest = {name: batch[name].flatten(mask.ndim)[..., -100:].unflatten(-1, (10, 10))[..., :6, 0] for name in ("obs", "next_obs")}
    bootstraps = mask & ~dones
    assert torch.equal(batch["next_action_masks"][bootstraps], masks_of(newest["next_obs"])[bootstraps]) and bool(bootstraps.any())
    if algo == "munchausen_dqn":
        assert torch.equal(batch["action_masks"], masks_of(newest["obs"]))


@pytest.mark.parametrize(("n_step", "double_q"), [(1, False), (3, False), (3, True)])
def test_targets_of_a_masked_task_in_closed_form(n_step: int, double_q: bool) -> None:
    # Q⁻(s, ·) = (s, 10·s, 0, 50): 0 goes back, 1 waits where s is even, 2 goes on, 3 is never allowed. So the best allowed value of s is
    # 10·s on even places (waiting) and s on odd ones, never 50, nor 10·s on odd ones. With double-Q the online network, (3, 2, 1, 50),
    # prefers 0 where it is allowed (s > 0, Q⁻ = s), else waits (s = 0, Q⁻ = 0): s in every place.
    parts = parts_of(
        "dqn" if n_step == 1 else "n_step_dqn",
        guarded,
        algo_kwargs={"n_step": n_step, "double_q": double_q, "hidden_sizes": [], "gamma": 0.5},
    )
    places = torch.arange(6.0)
    with torch.no_grad():
        for network, columns in (
            (parts.learner.target_network, [places, 10 * places, 0 * places, 0 * places + 50]),
            (parts.learner.q_network, [0 * places + value for value in (3, 2, 1, 50)]),
        ):
            layer = network.head.advantage.layers[-1]
            layer.weight.copy_(torch.stack(columns))
            layer.bias.zero_()
    batch = parts.replay.sample(256)
    s = batch["next_obs"].argmax(-1)
    best = torch.where((s % 2 == 0) & (not double_q), 10 * s, s)
    td, _ = parts.learner.td_loss(batch)
    torch.testing.assert_close(td.target_value, batch["rewards"] + batch["discounts"] * best)
    assert {*batch["discounts"].unique().tolist()} == {0.0, *(0.5**k for k in range(1, n_step + 1))}


@pytest.mark.parametrize("algo", ["dqn", "rainbow_dqn", "iqn", "r2d2"])
def test_a_masked_update_graphed_is_the_eager_one(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (storage, sampled_ring, samplers):
        monkeypatch.setattr(module, "uses_numpy", lambda device: False)
    one, other = masked_parts(algo), masked_parts(algo)
    beta = LinearSchedule(0.4, 1.0, 100) if algo in ("rainbow_dqn", "r2d2") else None
    eager, graphed = SampledUpdates(one.learner, one.replay, 16, beta), GraphedUpdates(other.learner, other.replay, 16, beta, CPU)
    for step in range(1, 31):
        theirs, mine = eager(step).metrics, graphed(step).metrics
    assert float(mine["target_mean"]) < 10
    torch.testing.assert_close(dict(mine), {name: value.detach() for name, value in theirs.items()}, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.learner.q_network.state_dict(), one.learner.q_network.state_dict(), **LEARNED)


@pytest.mark.parametrize("algo", ["n_step_dqn", "drqn"])
def test_a_masked_update_compiled_is_the_eager_one(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transitions come as packed rows, masks among them."""

    def interpreted(step: Any, inputs: Any) -> Compiled:
        graph = trace(step, inputs)
        return Compiled(lambda given: graph(*given), 0.0, False)

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    one, other = masked_parts(algo), masked_parts(algo)
    eager = SampledUpdates(one.learner, one.replay, 16, None)
    compiled = CompilingUpdates(SampledUpdates(other.learner, other.replay, 16, None), lambda what, text: None)
    for step in range(1, 31):
        theirs, mine = eager(step).metrics, compiled(step).metrics
    assert other.learner.gradient_step != other.learner.eager_step and float(mine["target_mean"]) < 10
    torch.testing.assert_close({**mine}, {**theirs}, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.learner.q_network.state_dict(), one.learner.q_network.state_dict(), **LEARNED)


# PPO's distribution.


def test_a_masked_policy_in_closed_form() -> None:
    # logits (0, ln 3, 7) where the third is forbidden: p = (¼, ¾, 0), log p(1) = ln ¾, H = ¼ ln 4 + ¾ ln 4/3
    logits = torch.tensor([[0.0, math.log(3), 7.0]], requires_grad=True)
    masks = torch.tensor([[True, True, False]])
    found = Categorical(3).evaluate(allowed_logits(logits, masks), torch.tensor([1]))
    torch.testing.assert_close(found.log_prob, torch.tensor([math.log(0.75)]))
    torch.testing.assert_close(found.entropy, torch.tensor([0.25 * math.log(4) + 0.75 * math.log(4 / 3)]))
    # ∂log p(1)/∂l = 1_a − p = (−¼, ¼), nothing for what is forbidden; ∂H/∂l_j = −p_j (log p_j + H)
    (on_log_prob,) = torch.autograd.grad(found.log_prob.sum(), logits, retain_graph=True)
    torch.testing.assert_close(on_log_prob, torch.tensor([[-0.25, 0.25, 0.0]]))
    (on_entropy,) = torch.autograd.grad(found.entropy.sum(), logits)
    h = found.entropy.item()
    torch.testing.assert_close(on_entropy, torch.tensor([[-0.25 * (math.log(0.25) + h), -0.75 * (math.log(0.75) + h), 0.0]]))


@pytest.mark.parametrize("distribution", [Categorical(5), MultiCategorical([3, 2])], ids=["categorical", "multi"])
def test_draws_and_modes_stay_within_the_masks(distribution: Any) -> None:
    rng = np.random.default_rng(0)
    masks = rng.random((500, 5)) < 0.4
    masks[:, [1, 3]] = True
    outputs = rng.normal(size=(500, 5)).astype(np.float32) * 10
    for actions in (distribution.sample(allowed_outputs(outputs, masks), rng), distribution.mode(allowed_outputs(outputs, masks))):
        chosen = actions[:, None] if actions.ndim == 1 else actions + np.array([0, 3])
        assert np.take_along_axis(masks, chosen, 1).all()


@pytest.mark.parametrize("distribution", [Categorical(5), MultiCategorical([3, 2])], ids=["categorical", "multi"])
def test_a_masked_gradient_by_hand_is_autograds(distribution: Any) -> None:
    torch.manual_seed(0)
    masks = torch.rand(64, 5) < 0.5
    masks[:, [0, 3]] = True
    outputs = torch.randn(64, 5, requires_grad=True)
    allowed = allowed_outputs(outputs.detach().numpy(), masks.numpy())
    actions = torch.from_numpy(distribution.sample(allowed, np.random.default_rng(0)))
    found = distribution.evaluate(allowed_logits(outputs, masks), actions)
    by_hand = hand_policy.evaluate(distribution, allowed_logits(outputs.detach(), masks), actions)
    torch.testing.assert_close((by_hand.log_prob, by_hand.entropy), (found.log_prob.detach(), found.entropy.detach()))
    on_log_prob, on_entropy = torch.randn(64), torch.randn(64)
    (expected,) = torch.autograd.grad((found.log_prob * on_log_prob + found.entropy * on_entropy).sum(), outputs)
    torch.testing.assert_close(by_hand.pullback(on_log_prob, on_entropy), expected)
    assert bool((expected[~masks] == 0).all())


def masked_rollout(network: Any, num_actions: int = 4, steps: int = 12, envs: int = 3) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    rollout = RolloutBuffer(steps, envs, (4,), extra={"action_masks": Field((num_actions,), torch.bool)})
    for _ in range(steps):
        obs, next_obs = rng.normal(size=(2, envs, 4)).astype(np.float32)
        masks = rng.random((envs, num_actions)) < 0.5
        masks[:, 0] = True
        with torch.no_grad():
            outputs, _ = network.step(torch.from_numpy(obs), (), torch.zeros(envs))
        rollout.add(
            obs=obs,
            next_obs=next_obs,
            actions=network.distribution.sample(allowed_outputs(outputs.numpy(), masks), rng),
            rewards=rng.normal(size=envs),
            terminated=rng.random(envs) < 0.1,
            truncated=np.zeros(envs, bool),
            action_masks=masks,
        )
    return rollout


def test_ppo_learns_from_the_policy_that_acted() -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(4, Categorical(4), (8,))
    learner = PPO(network, 1e-3, 0.9, minibatch_size=12, update_epochs=1, ent_coef=0.1)
    rollout = masked_rollout(network)
    found = learner.evaluate(rollout)
    # The rollout's log-probabilities are those of the masked policy: the first minibatch's ratios are 1, its KL 0.
    outputs, _ = network(torch.from_numpy(rollout.field("obs")))
    masks, actions = (torch.from_numpy(rollout.field(name)) for name in ("action_masks", "actions"))
    expected = torch.distributions.Categorical(logits=outputs.masked_fill(~masks, -torch.inf)).log_prob(actions)
    np.testing.assert_allclose(found.log_probs, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    items = rollout.items(log_probs=found.log_probs, values=found.values, advantages=found.values, returns=found.values)
    batch = next(rollout.minibatches(items, 12))
    assert float(learner.update(batch, global_step=0).metrics["approx_kl"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_masked_rollout_moves_nothing_that_was_never_allowed(by_hand: bool) -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(4, Categorical(4), (8,))
    learner = PPO(network, 1e-2, 0.9, minibatch_size=12, update_epochs=3, ent_coef=0.1)
    if by_hand:
        use_hand_gradients(learner)
    rollout = masked_rollout(network)
    rollout.field("action_masks")[:, :, 3] = False
    rollout.field("actions")[rollout.field("actions") == 3] = 0
    layer = network.heads.policy.layers[-1]
    before = layer.weight.detach().clone()
    assert float(learner.learn(rollout, global_step=0).metrics["entropy"]) < math.log(3)
    assert torch.equal(layer.weight[3], before[3]) and not torch.equal(layer.weight[:3], before[:3])


# Whole runs on a task that fails on a forbidden action.


def small_run(algo: str, output: Path, **changes: Any) -> TrainConfig:
    keys = get_algorithm_spec(algo).settings.model_fields
    kwargs = {"hidden_sizes": [16], "batch_size": 16, "buffer_capacity": 500, "learning_starts": 40, "train_frequency": 4}
    kwargs |= {"target_update_interval": 40, "features_dim": 8, "recurrent_hidden_size": 8, "sequence_length": 6}
    kwargs |= {"num_steps": 20, "minibatch_size": 20, **({"v_min": -20.0, "v_max": 20.0} if algo in ("c51_dqn", "rainbow_dqn") else {})}
    settings: dict[str, Any] = {"env_id": "given as a callable", "seed": 3, "total_timesteps": 160, "output_dir": str(output)}
    settings |= {"device": "cpu", "num_envs": 2, "eval_episodes": 4, "compile": False, **changes}
    return TrainConfig(algo=algo, algo_kwargs={key: value for key, value in kwargs.items() if key in keys}, **settings)


@pytest.mark.parametrize("algo", algorithm_names())
def test_every_row_trains_without_a_forbidden_action(algo: str, tmp_path: Path) -> None:
    result = train(small_run(algo, tmp_path), env=guarded)
    assert result.metrics["eval_episodes"] == 4  # greedy ones too
    again = evaluate_checkpoint(result.checkpoint_path, num_episodes=4, env=guarded)
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]


@pytest.mark.parametrize(("algo", "vectorization"), [("dqn", "sync"), ("ppo", "async"), ("r2d2", "async"), ("recurrent_ppo", "sync")])
def test_every_backend_hands_masks_over(algo: str, vectorization: Any, tmp_path: Path) -> None:
    results = [train(small_run(algo, tmp_path, vectorization=each), env=guarded) for each in (vectorization, "auto")]
    one, other = ((result.checkpoint_path / "model.safetensors").read_bytes() for result in results)
    assert one == other


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_masks_of_several_choices(algo: str, tmp_path: Path) -> None:
    train(small_run(algo, tmp_path), env=GuardedPair)


def test_taxi(tmp_path: Path) -> None:
    config = small_run("dqn", tmp_path, env_id="Taxi-v4", env_kwargs={"wrappers": ["flatten", {"time_limit": {"max_steps": 30}}]})
    result = train(config)
    assert result.metrics["global_step"] == 160
    assert '"action_masks": "given by the environments"' in (result.run_dir / "metadata.json").read_text()


def test_masked_dqn_solves_what_it_may_not_try(tmp_path: Path) -> None:
    config = small_run("dqn", tmp_path, total_timesteps=2_000).replace(num_envs=4)
    assert train(config, env=guarded).metrics["eval_return_mean"] > 3.5  # going on from places 0, 1, 2 gives 5, 4 or 3


def test_a_run_without_masks_cannot_go_on_with_them(tmp_path: Path) -> None:
    class Lenient(Guarded):
        def step(self, action: Any) -> Any:
            return super().step(action if self.action_masks()[action] else 2)

    first = train(small_run("dqn", tmp_path, total_timesteps=80), env=lambda: ignore_action_masks(Lenient()))
    with pytest.raises(CheckpointError, match=r"expected .*next_action_masks"):
        resume_training(first.checkpoint_path, total_timesteps=160, env=guarded)
