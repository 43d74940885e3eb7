"""Recurrent networks: one call of the core equals stepping, episode starts reset, heads and noise as in the feed-forward networks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rl_training.algorithms import DRQN
from rl_training.models import (
    ActorCriticHeads,
    Categorical,
    Core,
    FeedForwardActorCritic,
    GRUCore,
    LSTMCore,
    LSTMQNetwork,
    MLPTorso,
    RecurrentAction,
    RecurrentActorCritic,
    RecurrentQNetwork,
    ScalarHead,
    Torso,
)
from rl_training.models.flat import flatten_parameters
from sequence_chunks import lstm

pytestmark = pytest.mark.numeric


class TinyConv(Torso):
    """Two channels of 3 × 3, one filter."""

    out_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 2)

    def forward(self, obs: Tensor) -> Tensor:
        return self.conv(obs.float()).relu().flatten(1)


def with_core(kind: Callable[..., Core], layers: int = 1) -> RecurrentQNetwork:
    torch.manual_seed(0)
    return RecurrentQNetwork(MLPTorso(3, (7, 5)), kind(5, 6, layers), ScalarHead(6, 3))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("dueling", [False, True])
def test_shapes_and_the_zero_initial_state(layers: int, dueling: bool) -> None:
    net = LSTMQNetwork((4,), 2, 8, (16,), (12,), 6, layers, dueling=dueling)
    h, c = net.initial_state(5)
    assert h.shape == c.shape == (layers, 5, 6) and not h.any() and not c.any()
    assert net.q_values_sequence(torch.randn(7, 5, 4), initial_state=(h, c)).shape == (7, 5, 2)
    step = net.act(torch.randn(5, 4))
    assert isinstance(step, RecurrentAction)
    assert step.actions.shape == (5,) and step.q_values.shape == (5, 2)
    assert step.state[0].shape == step.state[1].shape == (layers, 5, 6)


def test_lstm_q_network_vector_obs_returns_q_values_actions_and_state() -> None:
    """One step of acting, against PyTorch's own layers."""
    torch.manual_seed(0)
    net = LSTMQNetwork((4,), 3, 8, (), (), 6, 1)
    obs, state = torch.randn(5, 4), (torch.randn(1, 5, 6), torch.randn(1, 5, 6))
    step = net.act(obs, state)
    core, (h, c) = net.core.lstm(net.encoder(obs)[None], state)
    (layer,) = net.head.advantage.layers
    # Sums of at most 8 products of order 1: a few roundings of 6e-8 each, in another order.
    torch.testing.assert_close(step.q_values, core[0] @ layer.weight.T + layer.bias, rtol=1e-5, atol=1e-6)
    assert torch.equal(step.actions, step.q_values.argmax(-1)) and step.actions.dtype == torch.int64
    torch.testing.assert_close(step.state, (h, c), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 1000), steps=st.integers(1, 8), layers=st.integers(1, 2), share=st.sampled_from([0.0, 0.2, 1.0]))
def test_a_sequence_with_episode_starts_equals_stepping_through_it(seed: int, steps: int, layers: int, share: float) -> None:
    net = lstm(seed, layers=layers)
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps, 3, 3, generator=generator)
    starts = (torch.rand(steps, 3, generator=generator) < share).float()
    state = (torch.randn(layers, 3, 6, generator=generator), torch.randn(layers, 3, 6, generator=generator))
    whole = net.q_values_sequence(obs, initial_state=state, episode_starts=starts)
    for t in range(steps):
        state = net.reset_state(state, starts[t])
        q, state = net.unroll(obs[t : t + 1], state)
        torch.testing.assert_close(whole[t], q[0], atol=1e-5, rtol=1e-4)


def test_no_starts_given_is_the_promise_that_there_are_none() -> None:
    net, obs = lstm(), torch.randn(6, 2, 3)
    state = (torch.randn(1, 2, 6), torch.randn(1, 2, 6))
    one_call = net.q_values_sequence(obs, initial_state=state)
    assert torch.equal(one_call, net.q_values_sequence(obs, initial_state=state, episode_starts=torch.zeros(6, 2)))


def test_a_start_forgets_everything_before_it_forward_and_backward() -> None:
    net = lstm()
    obs = torch.randn(6, 2, 3, requires_grad=True)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True  # only the first of the two sequences starts anew
    q = net.q_values_sequence(obs, initial_state=net.initial_state(2), episode_starts=starts)
    fresh = net.q_values_sequence(obs[3:], initial_state=net.initial_state(2))
    torch.testing.assert_close(q[3:, 0], fresh[:, 0])
    assert not torch.allclose(q[3:, 1], fresh[:, 1])
    (grad,) = torch.autograd.grad(q[3:].sum(), obs)
    assert not grad[:3, 0].any() and bool(grad[:3, 1].any())


def test_reset_state_zeroes_only_the_starting_environments() -> None:
    net = lstm(layers=2)
    state = (torch.randn(2, 3, 6), torch.randn(2, 3, 6))
    for starts in (torch.tensor([0.0, 1.0, 0.0]), torch.tensor([False, True, False]), np.array([False, True, False])):
        for before, after in zip(state, net.reset_state(state, starts), strict=True):
            assert not after[:, 1].any()
            assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])
    broken = (torch.full((2, 3, 6), torch.nan), state[1])
    assert not net.reset_state(broken, torch.ones(3))[0].any(), "a new episode must not inherit a NaN"


def test_acting_step_by_step_equals_the_sequence() -> None:
    net, obs = lstm(layers=2), torch.randn(5, 4, 3)
    sequence = net.q_values_sequence(obs, initial_state=net.initial_state(4))
    state = None
    for t in range(5):
        actions, q_values, state = net.act(obs[t], state)
        torch.testing.assert_close(q_values, sequence[t])
        assert torch.equal(actions, sequence[t].argmax(-1))
        assert not q_values.requires_grad


def test_acting_resets_where_an_episode_starts() -> None:
    net, obs = lstm(), torch.randn(2, 3)
    state = (torch.randn(1, 2, 6), torch.randn(1, 2, 6))
    fresh = net.act(obs)
    step = net.act(obs, state, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(step.q_values[0], fresh.q_values[0])
    assert not torch.allclose(step.q_values[1], fresh.q_values[1])
    torch.testing.assert_close(step.state[0][:, 0], fresh.state[0][:, 0])


@pytest.mark.parametrize("layers", [1, 2])
def test_acting_on_one_observation_is_a_batch_of_one(layers: int) -> None:
    net, obs = lstm(layers=layers), torch.randn(4, 3)
    batched = single = None
    for t in range(4):
        start = t == 2
        batched = net.act(obs[t : t + 1], None if batched is None else batched.state, torch.tensor([start]))
        single = net.act(obs[t], None if single is None else single.state, torch.tensor(start))
        assert single.actions.shape == () and single.q_values.shape == (3,)
        assert int(single.actions) == int(batched.actions) and torch.equal(single.q_values, batched.q_values[0])
        assert all(torch.equal(mine, its) for mine, its in zip(single.state, batched.state, strict=True))


def test_epsilon_is_drawn_for_each_environment() -> None:
    net = lstm()
    obs = torch.randn(1, 3).expand(4000, 3)
    greedy = int(net.act(obs[:1]).actions)
    actions = net.act(obs, epsilon=0.3, generator=torch.Generator().manual_seed(0)).actions
    # Greedy unless explored away: 1 − 0.3·⅔ = 0.8; the standard deviation over 4,000 draws is 0.0063
    assert float((actions == greedy).float().mean()) == pytest.approx(0.8, abs=0.03)
    ladder = torch.cat([torch.zeros(2000), torch.ones(2000)])
    actions = net.act(obs, epsilon=ladder, generator=torch.Generator().manual_seed(0)).actions
    assert bool((actions[:2000] == greedy).all()) and set(actions[2000:].tolist()) == {0, 1, 2}


def test_dueling_adds_the_value_and_the_centred_advantages() -> None:
    net = lstm(dueling=True)
    core = torch.randn(4, 2, 6)
    assert net.head.value is not None
    value, advantage = net.head.value(core), net.head.advantage(core)
    torch.testing.assert_close(net.head(core), value + advantage - advantage.mean(-1, keepdim=True))


def test_noise_moves_the_values_only_where_it_is_given() -> None:
    net, obs = lstm(noisy=True), torch.randn(4, 2, 3)
    state = net.initial_state(2)
    quiet = net.unroll(obs, state)[0]
    assert torch.equal(quiet, net.unroll(obs, state)[0])
    draws = net.draw(torch.Generator().manual_seed(0), (4, 2), "online")
    assert not torch.allclose(quiet, net.unroll(obs, state, draws=draws)[0])
    silent = lstm(noisy=True, noisy_sigma=0.0)
    torch.testing.assert_close(silent.unroll(obs, state)[0], silent.unroll(obs, state, draws=draws)[0])


def test_acting_noise_is_one_draw_per_environment() -> None:
    net, obs = lstm(noisy=True), torch.randn(1, 3).expand(3, 3)
    draws = net.draw(torch.Generator().manual_seed(0), (3,), "acting")
    q, _ = net.step(obs, net.initial_state(3), torch.zeros(3), draws)
    assert not torch.allclose(q[0], q[1]) and not torch.allclose(q[1], q[2])


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int64])
def test_observations_of_any_number_type(dtype: type) -> None:
    net = LSTMQNetwork((2, 3), 4, 8, (), (), 5, 1)  # a matrix is flattened
    obs = np.arange(12).reshape(2, 2, 3).astype(dtype)
    expected = net.act(torch.as_tensor(obs.astype(np.float32))).q_values
    assert torch.equal(net.act(obs).q_values, expected)


@pytest.mark.parametrize("kind", [LSTMCore, GRUCore])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_core_begins_the_flat_tensor_in_cudnns_order(layers: int, kind: type[LSTMCore] | type[GRUCore]) -> None:
    # cuDNN uses weights where they lie if they start their storage, matrices before biases; else every call copies them together.
    names = [f"{kind}_{part}_l{layer}" for kind in ("weight", "bias") for layer in range(layers) for part in ("ih", "hh")]
    for net in (with_core(kind, layers), copy.deepcopy(with_core(kind, layers))):
        flat = flatten_parameters(net)
        (rnn,) = net.core.children()
        offset = 0
        for name in names:
            weight = getattr(rnn, name)
            assert weight.data_ptr() == flat.data_ptr() + 4 * offset and weight.is_contiguous()
            assert weight.untyped_storage().data_ptr() == flat.data_ptr()
            offset += weight.numel()
        # What torch computes with is the same parameters, in its own order.
        assert [id(weight) for weight in rnn._flat_weights] == [id(weight) for group in rnn.all_weights for weight in group]
    plain = type(rnn)(5, 6, layers)
    plain.load_state_dict(rnn.state_dict())
    x = torch.randn(4, 2, 5)
    assert torch.equal(rnn(x)[0], plain(x)[0])


def test_a_learner_trains_the_very_weights_the_network_acts_with() -> None:
    # The parameters became views of one tensor: an update through it must be what nn.LSTM computes with next.
    from sequence_chunks import random_chunks

    net = lstm()
    learner = DRQN(net, 1e-2, 0.9, 10)
    obs = torch.randn(3, 4, 3)
    before = net.q_values_sequence(obs, initial_state=net.initial_state(4))
    learner.update(random_chunks(0, length=5), global_step=1)
    after = net.q_values_sequence(obs, initial_state=net.initial_state(4))
    assert not torch.allclose(before, after)
    copied = lstm(1)
    copied.load_state_dict(net.state_dict())
    assert torch.equal(after, copied.q_values_sequence(obs, initial_state=net.initial_state(4)))


def test_a_skip_lets_the_head_read_the_features_beside_the_memory() -> None:
    torch.manual_seed(0)
    net = LSTMQNetwork((3,), 2, 5, (), (), 6, 1, skip=True)
    obs = torch.randn(4, 2, 3)
    layer = net.head.advantage.layers[0]
    assert layer.weight.shape == (2, 6 + 5)
    # Q = W·[h, features] + b, features = ReLU(encoder): with the columns of h at 0 only the present observation counts
    whole = net.q_values_sequence(obs, initial_state=net.initial_state(2))
    with torch.no_grad():
        layer.weight[:, :6] = 0
        expected = net.encoder(obs) @ layer.weight[:, 6:].T + layer.bias
    memoryless = net.q_values_sequence(obs, initial_state=(torch.randn(1, 2, 6), torch.randn(1, 2, 6)))
    torch.testing.assert_close(memoryless, expected)
    assert not torch.allclose(whole, expected)
    state = net.initial_state(2)
    for t in range(4):
        step = net.act(obs[t], state)
        state = step.state
        torch.testing.assert_close(step.q_values, expected[t])
        core, _ = net.step_core(obs[t], net.initial_state(2))  # the cell alone, as recurrent PPO acts
        torch.testing.assert_close(core, net.unroll_core(obs[t : t + 1], net.initial_state(2))[0][0])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [LSTMCore, GRUCore])
def test_any_core_unrolls_as_it_steps(kind: type[LSTMCore] | type[GRUCore], layers: int) -> None:
    net, parts = with_core(kind, layers), 2 if kind is LSTMCore else 1
    state: tuple[Tensor, ...] = tuple(torch.randn(layers, 4, 6) for _ in range(parts))
    assert [part.shape for part in net.initial_state(4)] == [part.shape for part in state] and net.facts.recurrent
    obs, starts = torch.randn(5, 4, 3), torch.zeros(5, 4)
    starts[0, 1] = starts[3, 2] = starts[3, 0] = 1
    whole, after = net.unroll_core(obs, state, starts)
    for t in range(5):
        state = net.reset_state(state, starts[t])
        general, _ = Core.step(net.core, net.encoder(obs[t]), state)  # what a core without a faster form does
        core, state = net.step_core(obs[t], state)
        torch.testing.assert_close(core, whole[t])
        torch.testing.assert_close(general, whole[t])
    for ours, theirs in zip(state, after, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert net.act(obs[0]).state[0].shape == (layers, 4, 6) and len(net.act(obs[0]).state) == parts


@pytest.mark.parametrize("skip", [False, True])
def test_any_torso_goes_before_any_core(skip: bool) -> None:
    net = RecurrentQNetwork(TinyConv(), GRUCore(8, 6), ScalarHead(6 + 8 * skip, 3), skip=skip, obs_ndim=3)
    obs = torch.randint(255, (5, 4, 2, 3, 3), dtype=torch.uint8)
    out, _ = net.unroll(obs, net.initial_state(4))
    assert out.shape == (5, 4, 3)
    state = net.initial_state(4)
    for t in range(5):
        q, state = net.step(obs[t], state, torch.zeros(4))
        torch.testing.assert_close(q, out[t], atol=1e-4, rtol=1e-4)  # features of hundreds
    assert net.facts == (sum(p.numel() for p in net.parameters()), True, True)
    assert net.act(obs[0, 0]).q_values.shape == (3,)


def test_an_actor_critic_is_made_of_the_same_parts() -> None:
    heads = ActorCriticHeads(6, Categorical(3), (5,), "tanh", 0.0)
    net = RecurrentActorCritic(TinyConv(), GRUCore(8, 6), heads)
    obs = torch.randint(3, (5, 4, 2, 3, 3), dtype=torch.uint8)
    outputs, values = net(obs)
    assert outputs.shape == (5, 4, 3) and values.shape == (5, 4)
    state = net.initial_state(4)
    for t in range(5):
        step, state = net.step(obs[t], state, torch.zeros(4))
        torch.testing.assert_close(step, outputs[t])
    feed_forward = FeedForwardActorCritic(TinyConv(), ActorCriticHeads(8, Categorical(3), (5,), "tanh", 0.0))
    outputs, values = feed_forward(obs[0])
    assert outputs.shape == (4, 3) and values.shape == (4,) and feed_forward.facts[1:] == (False, True)


def test_weights_saved_before_there_were_cores_still_load() -> None:
    net, fresh = lstm(0), lstm(1)
    old = {name.removeprefix("core."): value for name, value in net.state_dict().items()}
    assert "lstm.weight_ih_l0" in old
    fresh.load_state_dict(old)
    for ours, theirs in zip(fresh.parameters(), net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert "lstm.weight_ih_l0" in old  # the caller's dict is its own
    copy.deepcopy(fresh).load_state_dict(old)
