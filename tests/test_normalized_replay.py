"""Replay holds raw values; a batch is in the units of now: transitions, n-step sums and sequences, eager, packed and in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import DQN
from rl_training.data import NStepAccumulator, RecurrentReplayBuffer, ReplayBuffer
from rl_training.data.normalized import NormalizedReplay
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.models import MLPQNetwork
from rl_training.runtime.accelerate import CompilingUpdates
from rl_training.runtime.actor import ReplayFeed
from rl_training.runtime.off_policy import SampledUpdates
from rl_training.speed import ahead_of_time
from rl_training.speed.ahead_of_time import Compiled, trace
from rl_training.speed.graphs import GraphedUpdates
from rl_training.types import Step
from value_rows import parts_of

CPU = torch.device("cpu")
WRAPPERS = {"wrappers": ["normalize_observation", {"normalize_reward": {"gamma": 0.9}}]}


def observations(*rows: list[float], clip: float = 10.0) -> ObservationNormalizer:
    made = ObservationNormalizer((1,), clip=clip, eps=0.0)
    made.moments.update(np.array(rows))
    return made


def rewards(*returns: float, clip: float = 10.0) -> RewardNormalizer:
    made = RewardNormalizer(1, clip=clip, eps=0.0)
    made.moments.update(np.array(returns))
    return made


def normalized(held: Any, of_obs: Any = None, of_rewards: Any = None, *, clip_rewards: bool = True) -> NormalizedReplay:
    return NormalizedReplay(held, observations=of_obs, rewards=of_rewards, clip_rewards=clip_rewards, device=CPU)


def one_transition(reward: float = 5.0) -> dict[str, np.ndarray]:
    return {
        name: np.array([value]) for name, value in {"obs": [5.0], "next_obs": [9.0], "actions": 1, "rewards": reward, "dones": 0}.items()
    }


def test_what_is_stored_stays_raw_and_a_batch_follows_the_statistics() -> None:
    of_obs = observations([3.0], [7.0])  # mean 5, deviation 2
    held = ReplayBuffer(4, (1,))
    replay = normalized(held, of_obs)
    replay.add_items(one_transition())
    first = replay.sample(1)
    assert (first["obs"].item(), first["next_obs"].item(), first["rewards"].item()) == (0.0, 2.0, 5.0)
    of_obs.moments.update(np.array([[1.0], [1.0]]))  # of 3 7 1 1: mean 3, variance (0 + 16 + 4 + 4) / 4 = 6
    assert replay.sample(1)["obs"].item() == 0.0, "until the next refresh: the updates of one round see the same units"
    replay.refresh()
    assert replay.sample(1)["obs"].item() == pytest.approx(2 / 6**0.5) and replay.sample(1)["next_obs"].item() == pytest.approx(6 / 6**0.5)
    assert held.sample(1)["obs"].item() == 5.0 and held.sample(1)["rewards"].item() == 5.0


def test_a_batch_is_what_the_acting_network_would_be_shown() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(1e4, 1.0, size=(50, 3)).astype(np.float32)  # far from 0: in float32 the mean alone would be off by 1e-3
    of_obs = ObservationNormalizer((3,))
    of_obs.moments.update(rows)
    held = ReplayBuffer(50, (3,), seed=1)
    held.add_batch(obs=rows, next_obs=rows, actions=np.zeros(50), rewards=np.arange(50), dones=np.zeros(50))
    batch = normalized(held, of_obs).sample(40)
    np.testing.assert_array_equal(batch["obs"], of_obs.normalize(rows[batch["rewards"].long()]))
    assert batch["obs"].dtype == torch.float32


@pytest.mark.parametrize(("n_step", "expected"), [(1, 1.5), (2, 1.875)])
def test_a_reward_is_clipped_and_a_sum_of_rewards_is_scaled_alone(n_step: int, expected: float) -> None:
    # returns 2 and 10: deviation 4. n = 1: 8 / 4 = 2, clipped to 1.5. n = 2, γ = ½: (5 + ½·5) / 4 = 1.875, where clipping would give 1.5
    held = ReplayBuffer(4, (1,))
    replay = normalized(held, None, rewards(2.0, 10.0, clip=1.5), clip_rewards=n_step == 1)
    feed = ReplayFeed(NStepAccumulator(n_step, 0.5, 1), replay, replay.refresh)
    no, obs = np.zeros(1, bool), np.zeros((1, 1), np.float32)
    for _ in range(n_step):
        feed.push(Step(obs, np.zeros(1, np.int64), np.array([8.0 if n_step == 1 else 5.0]), obs, no, no))
    feed.flush()
    assert replay.sample(1)["rewards"].item() == expected
    assert held.sample(1)["rewards"].item() == (8.0 if n_step == 1 else 7.5)


def test_the_feed_takes_the_statistics_over_before_learning() -> None:
    of_obs = observations([3.0], [7.0])
    replay = normalized(ReplayBuffer(4, (1,)), of_obs)
    replay.add_items(one_transition())
    feed = ReplayFeed(NStepAccumulator(1, 0.5, 1), replay, replay.refresh)
    of_obs.moments.update(np.array([[1.0], [1.0]]))
    feed.flush()  # nothing to add, yet what is there is about to be learned from
    assert replay.sample(1)["obs"].item() == pytest.approx(2 / 6**0.5)


def test_sequences_hold_single_rewards_and_every_observation() -> None:
    held = RecurrentReplayBuffer(40, 1, (1,), 4, 2, state_parts=1)
    replay = normalized(held, observations([3.0], [7.0]), rewards(2.0, 10.0, clip=1.5))
    maker = held.make_assembler()
    for t in range(3):  # observations 1, 3, 5, then the true last one 7; rewards 4, 8, 12
        obs, flag = np.array([[1.0 + 2 * t]]), np.array([True])
        ends = {"terminated": flag & (t == 2), "truncated": ~flag, "episode_starts": flag & (t == 0)}
        state = (np.zeros((1, 1, 2)),)
        replay.add_items(maker.push(Step(obs, np.zeros(1), np.array([4.0 * (t + 1)]), obs + 2, **ends, initial_state=state)))
    batch = replay.sample(1)
    # (x − 5) / 2, and r / 4 clipped at 1.5
    assert batch["obs"][:3, 0, 0].tolist() == [-2, -1, 0] and batch["next_obs"][:3, 0, 0].tolist() == [-1, 0, 1]
    assert batch["rewards"][:3, 0].tolist() == [1, 1.5, 1.5] and batch["mask"][:, 0].tolist() == [1, 1, 1, 0]
    assert held.sample(1)["rewards"][:3, 0].tolist() == [4, 8, 12]


@pytest.mark.parametrize("algo", ["dqn", "n_step_dqn", "r2d2"])
def test_a_run_with_normalisation_stores_what_one_without_does(algo: str) -> None:
    # Both act at random from the same seeds, so their environments give the same.
    plain, normal = parts_of(algo), parts_of(algo, env_kwargs=WRAPPERS)
    assert isinstance(normal.replay, NormalizedReplay)
    mine, theirs = (parts.replay.state_dict()["storage"]["rows"] for parts in (normal, plain))
    if algo == "r2d2":  # but for the recurrent states, which are the network's own
        raw, other = normal.replay._replay.sample(64), plain.replay.sample(64)
        mine, theirs = ({name: batch[name] for name in ("obs", "next_obs", "rewards", "actions", "dones")} for batch in (raw, other))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    batch = normal.replay.sample(64)
    assert not torch.equal(batch["rewards"].round(), batch["rewards"]), "CartPole's raw ones are 1"
    assert batch["obs"].std() > 0.5, "CartPole's raw observations are around 0.1"


@pytest.mark.parametrize("algo", ["n_step_dqn", "prioritized_dqn"])
def test_packed_rows_carry_the_statistics_into_the_compiled_step(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(step: Any, inputs: Any) -> Compiled:
        graph = trace(step, inputs)
        statistics = {x.data_ptr() for x in two.replay._now.values()}
        frozen = [name for name, constant in ahead_of_time._constants(graph) if constant.data_ptr() in statistics]
        assert not frozen, "what is no input would be kept as it is now"
        return Compiled(lambda given: graph(*given), 0.0, False)

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    one, two = parts_of(algo, env_kwargs=WRAPPERS), parts_of(algo, env_kwargs=WRAPPERS)
    beta = (lambda step: 0.4) if algo == "prioritized_dqn" else None
    plain = SampledUpdates(one.learner, one.replay, 16, beta)
    compiled = CompilingUpdates(SampledUpdates(two.learner, two.replay, 16, beta), lambda what, text: None)
    for step in range(1, 30):
        if step == 10:
            move_statistics(one, two)
        plain(step)
        compiled(step)
    assert "obs" not in two.replay.sample(4, packed=True) and "obs shift" in two.replay.sample(4, packed=True)
    torch.testing.assert_close(two.learner.q_network.state_dict(), one.learner.q_network.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ["n_step_dqn", "r2d2"])
def test_a_graph_reads_the_statistics_where_they_are(algo: str) -> None:
    one, two = parts_of(algo, env_kwargs=WRAPPERS), parts_of(algo, env_kwargs=WRAPPERS)
    beta = (lambda step: 0.4) if algo == "r2d2" else None
    eager, graphed = SampledUpdates(one.learner, one.replay, 16, beta), GraphedUpdates(two.learner, two.replay, 16, beta, CPU)
    addresses = [x.data_ptr() for x in two.replay._now.values()]
    for step in range(1, 20):
        if step == 10:
            move_statistics(one, two)
        eager(step)
        graphed(step)
    assert [x.data_ptr() for x in two.replay._now.values()] == addresses, "a capture keeps addresses, not names"
    torch.testing.assert_close(two.learner.q_network.state_dict(), one.learner.q_network.state_dict(), rtol=1e-4, atol=1e-5)


def move_statistics(*parts: Any) -> None:
    for some in parts:
        before = some.replay.sample(16)["obs"].std()
        some.replay._units["obs"].moments.update(np.random.default_rng(0).normal(3.0, 4.0, size=(500, 4)))
        some.replay.refresh()
        assert some.replay.sample(16)["obs"].std() < before


def test_a_usual_batch_passes_unpacked() -> None:
    replay = normalized(ReplayBuffer(4, (1,)), observations([3.0], [7.0]))
    replay.add_items(one_transition())
    batch = replay.sample(1)
    assert replay.unpack(batch)["obs"].item() == batch["obs"].item() == 0.0
    assert replay.unpack(replay.sample(1, packed=True))["obs"].item() == 0.0


def test_a_learner_takes_a_normalised_batch() -> None:
    replay = normalized(ReplayBuffer(4, (1,)), observations([3.0], [7.0]), rewards(2.0, 10.0))
    replay.add_items(one_transition())
    learner = DQN(MLPQNetwork(1, 2, ()), learning_rate=0.1, gamma=0.5, target_update_interval=10)
    with torch.no_grad():
        for parameter in (*learner.q_network.parameters(), *learner.target_network.parameters()):
            parameter.fill_(1.0)
    # obs 0, next_obs 2, reward 5/4: Q = 0·1 + 1 = 1, y = 1.25 + ½·(2 + 1) = 2.75
    assert float(learner.update(replay.sample(1), global_step=1).metrics["target_mean"]) == pytest.approx(2.75)
