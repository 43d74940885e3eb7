"""Burn-in, unroll and n-step alignment: closed forms on networks with prescribed values, and equality with a naive reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rl_training.algorithms.backups import greedy_backup
from rl_training.algorithms.rules import td_target
from rl_training.algorithms.sequence_view import SequenceView, n_step_returns
from rl_training.algorithms.views import Aligned
from rl_training.data import RecurrentReplayBuffer
from rl_training.models import Draws, LSTMQNetwork
from rl_training.types import Step
from sequence_chunks import TableNetwork, lstm, naive_errors, random_chunks, table_chunk

pytestmark = pytest.mark.numeric

GAMMA = 0.5
# Q⁻(s, ·) of states 0 … 5: the greedy value of state s is 10·s.
TARGET = TableNetwork([[0.0, -1.0], [10.0, 9.0], [20.0, 19.0], [30.0, 29.0], [40.0, 39.0], [50.0, 49.0]])
# The online network prefers action 1 everywhere, so that double-Q picks the value 10·s − 1.
ONLINE = TableNetwork([[0.5, 1.0]] * 6)


def align(chunk: dict[str, Tensor], n_step: int = 1, burn_in: int = 0, double_q: bool = False, gamma: float = GAMMA) -> Aligned:
    view = SequenceView(gamma=gamma, n_step=n_step, burn_in=burn_in)
    return view.align(chunk, ONLINE, TARGET, backup=greedy_backup(double_q), generator=torch.Generator())


def targets(aligned: Aligned) -> list[float]:
    return td_target(aligned.rewards, aligned.discounts, aligned.bootstrap.outputs)[:, 0].tolist()


# Episode 1 → 2 → 3 → 4 → 5 with rewards 1, 2, 3, 4 and γ = ½.


def test_one_step_targets() -> None:
    # y_t = r_t + ½·10·s_{t+1}: 1 + 10, 2 + 15, 3 + 20, 4 + 25
    assert targets(align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4]))) == [11, 17, 23, 29]


def test_n_step_bootstraps_at_t_plus_n_of_the_unroll_and_tails_keep_their_own_discount() -> None:
    aligned = align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4]), n_step=3)
    # R_0 = 1 + 2/2 + 3/4 = 2.75, + ⅛·Q⁻(s=4) = 5        → 7.75   (in the middle: at t + 3, not t + 1)
    # R_1 = 2 + 3/2 + 4/4 = 4.5,  + ⅛·Q⁻(s=5) = 6.25     → 10.75
    # R_2 = 3 + 4/2       = 5,    + ¼·Q⁻(s=5) = 12.5     → 17.5   (two steps are left: γ²)
    # R_3 = 4,                    + ½·Q⁻(s=5) = 25       → 29
    assert targets(aligned) == [7.75, 10.75, 17.5, 29]
    assert aligned.discounts[:, 0].tolist() == [0.125, 0.125, 0.25, 0.5]


def test_termination_does_not_bootstrap() -> None:
    aligned = align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4], terminated=True), n_step=3)
    # t = 0 sums steps 0, 1, 2, none of which terminates: as before. The others reach the terminal step: R alone.
    assert targets(aligned) == [7.75, 4.5, 5, 4]
    assert aligned.discounts[:, 0].tolist() == [0.125, 0, 0, 0]


def test_a_life_lost_inside_a_chunk_cuts_the_returns_and_nothing_else() -> None:
    chunk = table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4])
    chunk["dones"][1] = 1
    aligned = align(chunk, n_step=3)
    # R_0 = 1 + 2/2 and R_1 = 2 end with the life; R_2 = 3 + 4/2 + ¼·50 and R_3 = 4 + ½·50 belong to the next one, in the same unroll
    assert targets(aligned) == [2, 2, 17.5, 29]
    assert aligned.discounts[:, 0].tolist() == [0, 0, 0.25, 0.5]
    assert aligned.mask is not None and aligned.mask[:, 0].tolist() == [1, 1, 1, 1]


def test_truncation_bootstraps_from_the_true_final_observation() -> None:
    # Truncated after 2 of 4 steps: the observation after the last valid step (s=5) is the true final one, and `obs` holds it.
    aligned = align(table_chunk([1, 2, 5], [1, 2], length=4), n_step=3)
    # R_0 = 1 + 2/2 = 2, + ¼·50 = 12.5 → 14.5;  R_1 = 2 + ½·50 = 27. The padding's rewards (99) are in neither.
    assert targets(aligned)[:2] == [14.5, 27]
    assert aligned.mask is not None and aligned.mask[:, 0].tolist() == [1, 1, 0, 0]


def test_truncation_at_the_chunks_end_bootstraps_from_next_obs() -> None:
    chunk = table_chunk([1, 2, 3], [1, 2])
    # s=3 is nowhere in `obs`: only `next_obs` of the last step has it. 2 + ½·30
    assert chunk["obs"][:, 0, 0].tolist() == [1, 2]
    assert targets(align(chunk, n_step=1))[-1] == 17


def test_termination_in_a_padded_chunk() -> None:
    aligned = align(table_chunk([1, 2, 3], [1, 2], terminated=True, length=5), n_step=3)
    assert targets(aligned)[:2] == [2, 2]


def test_a_return_longer_than_the_chunk_is_cut_at_its_end() -> None:
    # n = 9 > T = 2: R_0 = 1 + 2/2 + ¼·30, R_1 = 2 + ½·30
    assert targets(align(table_chunk([1, 2, 3], [1, 2]), n_step=9)) == [9.5, 17]


def test_double_q_selects_with_the_online_network_where_it_bootstraps() -> None:
    # As the 3-step test, with 10·s − 1 (action 1) in place of 10·s: ⅛·39, ⅛·49, ¼·49, ½·49
    aligned = align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4]), n_step=3, double_q=True)
    assert targets(aligned) == [2.75 + 4.875, 4.5 + 6.125, 5 + 12.25, 4 + 24.5]


def test_double_q_selects_by_state_at_t_plus_k_not_t_plus_1() -> None:
    # Online prefers action 1 only in state 3, which is t + 2 of t = 0.
    online = TableNetwork([[1.0, 0.0]] * 3 + [[0.0, 1.0]] + [[1.0, 0.0]] * 2)
    view = SequenceView(gamma=GAMMA, n_step=2)
    aligned = view.align(table_chunk([1, 2, 3, 4], [0, 0, 0]), online, TARGET, backup=greedy_backup(True), generator=torch.Generator())
    # t=0 at s=3: 29; t=1 at s=4: 40; t=2 at s=4 after one step: 40
    assert aligned.bootstrap.outputs[:, 0].tolist() == [29, 40, 40]


def test_burn_in_steps_are_left_out() -> None:
    whole = align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4]), n_step=2)
    cut = align(table_chunk([1, 2, 3, 4, 5], [1, 2, 3, 4]), n_step=2, burn_in=2)
    assert targets(cut) == targets(whole)[2:]
    assert cut.chosen.shape == (2, 1) and cut.mask is not None and cut.mask.shape == (2, 1)


def test_actions_are_those_of_the_step() -> None:
    aligned = align(table_chunk([1, 2, 3], [1, 2], actions=[0, 1]))
    assert aligned.chosen[:, 0].tolist() == [0.5, 1.0]


# Property: equal to the definition, one sequence and one step at a time.


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), burn_in=st.integers(0, 3), trained=st.integers(1, 6), n_step=st.integers(1, 7), double_q=st.booleans())
def test_equals_the_naive_reference_values_and_gradients(seed: int, burn_in: int, trained: int, n_step: int, double_q: bool) -> None:
    online, target = lstm(seed), lstm(seed + 1)
    batch = random_chunks(seed, length=burn_in + trained, burn_in=burn_in)
    view = SequenceView(gamma=0.9, n_step=n_step, burn_in=burn_in)
    aligned = view.align(batch, online, target, backup=greedy_backup(double_q), generator=torch.Generator())
    assert aligned.mask is not None
    errors = td_target(aligned.rewards, aligned.discounts, aligned.bootstrap.outputs) - aligned.chosen
    with torch.no_grad():
        target_errors = naive_errors(batch, online, target, gamma=0.9, n_step=n_step, burn_in=burn_in, double_q=double_q)
    for b, expected in enumerate(target_errors):
        assert int(aligned.mask[:, b].sum()) == len(expected)
        torch.testing.assert_close(errors[: len(expected), b], torch.stack(expected), atol=2e-5, rtol=1e-4)

    parameters = list(online.parameters())
    ours = torch.autograd.grad((errors * aligned.mask).square().sum(), parameters)
    naive = naive_errors(batch, online, target, gamma=0.9, n_step=n_step, burn_in=burn_in, double_q=double_q)
    reference = torch.autograd.grad(torch.stack([error for chunk in naive for error in chunk]).square().sum(), parameters)
    for a, b_ in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b_, atol=2e-4, rtol=1e-3)


@given(data=st.data(), n_step=st.integers(1, 6), length=st.integers(1, 7))
def test_n_step_returns_equal_their_definition_even_with_terminations_inside(data: st.DataObject, n_step: int, length: int) -> None:
    numbers = st.lists(st.floats(-5, 5, width=32), min_size=length, max_size=length)
    rewards = data.draw(numbers)
    dones = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    valid = data.draw(st.integers(1, length))
    result = n_step_returns(
        torch.tensor(rewards)[:, None],
        torch.tensor(dones).float()[:, None],
        (torch.arange(length) < valid).float()[:, None],
        gamma=0.9,
        n_step=n_step,
    )
    for t in range(valid):
        value, k = 0.0, 0
        while k < n_step and t + k < valid and not (k and dones[t + k - 1]):
            value += 0.9**k * rewards[t + k]
            k += 1
        assert int(result.steps[t]) == k
        assert float(result.rewards[t]) == pytest.approx(value, abs=1e-4)
        assert float(result.discounts[t]) == pytest.approx(0.0 if dones[t + k - 1] else 0.9**k, rel=1e-5)
    assert bool((torch.arange(length)[:, None] + result.steps <= length).all())  # padding too bootstraps inside the unroll


# Gradients: only where the loss is.


@pytest.mark.parametrize("double_q", [False, True])
def test_gradient_reaches_neither_burn_in_nor_padding_nor_the_bootstrap(double_q: bool) -> None:
    burn_in, length = 3, 8
    batch = random_chunks(5, length=length, burn_in=burn_in, batch=6)
    batch["obs"].requires_grad_()
    batch["next_obs"].requires_grad_()
    batch["initial_h"].requires_grad_()
    view = SequenceView(gamma=0.9, n_step=2, burn_in=burn_in)
    aligned = view.align(batch, lstm(0), lstm(1), backup=greedy_backup(double_q), generator=torch.Generator())
    assert aligned.mask is not None and not aligned.bootstrap.outputs.requires_grad
    (aligned.chosen * aligned.mask).sum().backward()
    grad = batch["obs"].grad
    assert grad is not None
    assert bool((grad[:burn_in] == 0).all()), "the burn-in is unrolled without gradient"
    padding = aligned.mask == 0
    assert bool(padding.any()) and bool((grad[burn_in:][padding] == 0).all()), "masked steps get exactly zero gradient"
    assert bool((grad[burn_in:][~padding] != 0).any(-1).all()), "every trained step gets one"
    assert batch["initial_h"].grad is None
    assert batch["next_obs"].grad is None or bool((batch["next_obs"].grad == 0).all())


def test_one_masked_parameter_gradient_equals_the_shorter_chunk() -> None:
    # Padding a chunk must change nothing: same values, same gradient, bit for bit up to the LSTM's own arithmetic.
    online, target = lstm(0), lstm(1)
    short = random_chunks(3, length=4, batch=1)
    for key in ("mask", "rewards"):
        short[key].fill_(1.0)
    short["dones"].zero_()
    obs = torch.cat([short["obs"], short["next_obs"][-1:], torch.full((2, 1, 3), 7.0)])  # the true next_obs, then padding
    padded = {**short, "obs": obs[:-1], "next_obs": obs[1:]}
    for key in ("mask", "rewards", "dones", "actions", "episode_starts"):
        padded[key] = torch.cat([short[key], torch.zeros(2, 1, dtype=short[key].dtype)])
    losses, grads = [], []
    for batch in (short, padded):
        view = SequenceView(gamma=0.9, n_step=3)
        aligned = view.align(batch, online, target, backup=greedy_backup(True), generator=torch.Generator())
        error = (td_target(aligned.rewards, aligned.discounts, aligned.bootstrap.outputs) - aligned.chosen) * aligned.mask
        losses.append(error.square().sum())
        grads.append(torch.autograd.grad(losses[-1], list(online.parameters())))
    torch.testing.assert_close(losses[0], losses[1])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


# Burn-in and the stored state.


def test_both_networks_burn_in_from_the_stored_state_each_by_its_own_weights() -> None:
    online, target = lstm(0), lstm(1)
    batch = random_chunks(11, length=7, burn_in=3, batch=5)
    batch["episode_starts"].zero_()  # every prefix real
    view = SequenceView(gamma=0.9, burn_in=3)
    stored = (batch["initial_h"], batch["initial_c"])
    for net in (online, target):
        expected = net.unroll(batch["obs"][:3], stored)[1]
        for ours, theirs in zip(view.start_state(batch, net), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert not ours.requires_grad


def test_a_chunk_that_starts_an_episode_keeps_the_zero_state_through_its_padded_prefix() -> None:
    # An episode of 2 steps, shorter than the burn-in of 3: the prefix is all padding, both steps are trained from the zero state.
    online, target = lstm(0), lstm(1)
    batch = random_chunks(2, length=6, burn_in=3, batch=1)
    obs = torch.full((7, 1, 3), 7.0)
    obs[3:6] = torch.randn(3, 1, 3, generator=torch.Generator().manual_seed(0))
    batch |= {"obs": obs[:-1], "next_obs": obs[1:], "initial_h": torch.zeros(1, 1, 6), "initial_c": torch.zeros(1, 1, 6)}
    batch["mask"] = torch.tensor([0.0, 0, 0, 1, 1, 0])[:, None]
    batch["episode_starts"] = torch.tensor([0.0, 0, 0, 1, 0, 0])[:, None]
    view = SequenceView(gamma=0.9, burn_in=3)
    assert all(bool((part == 0).all()) for part in view.start_state(batch, online))
    aligned = view.align(batch, online, target, backup=greedy_backup(False), generator=torch.Generator())
    fresh = online.q_values_sequence(obs[3:5], initial_state=online.initial_state(1))
    expected = fresh.gather(-1, batch["actions"][3:5, :, None])[..., 0]
    torch.testing.assert_close(aligned.chosen[:2], expected)
    assert aligned.mask is not None and aligned.mask[:, 0].tolist() == [1, 1, 0]


@pytest.mark.parametrize("double_q", [False, True])
def test_masks_belong_to_the_observation_after_their_step(double_q: bool) -> None:
    # States 1 … 4 after a burn-in of one step, then padding, which allows nothing. In 3 only the action is allowed that would not be
    # selected: the second of (30, 29), or with double-Q the first.
    chunk = table_chunk([1, 2, 3, 4], [0.0, 0.0, 0.0], length=5)
    masks = torch.ones(5, 1, 2, dtype=torch.bool)
    masks[1, 0] = torch.tensor([double_q, not double_q])
    masks[3:] = False
    aligned = align({**chunk, "next_action_masks": masks}, burn_in=1, double_q=double_q)
    assert aligned.bootstrap.outputs[:2, 0].tolist() == ([30.0, 39.0] if double_q else [29.0, 40.0])
    assert bool(aligned.bootstrap.outputs.isfinite().all())  # a masked loss of −∞ would be NaN
    if not double_q:
        two = align({**chunk, "next_action_masks": masks}, n_step=2)
        assert two.bootstrap.outputs[:2, 0].tolist() == [29.0, 40.0]


def test_without_the_stored_state_chunks_start_from_zeros() -> None:
    online, target = lstm(0), lstm(1)
    batch = random_chunks(4, length=5)
    batch["initial_h"], batch["initial_c"] = torch.randn(1, 4, 6), torch.randn(1, 4, 6)
    zeroed = batch | {"initial_h": torch.zeros(1, 4, 6), "initial_c": torch.zeros(1, 4, 6)}

    def chosen(chunk: dict[str, Tensor], stored: bool) -> Tensor:
        view = SequenceView(gamma=0.9, use_stored_state=stored)
        return view.align(chunk, online, target, backup=greedy_backup(False), generator=torch.Generator()).chosen

    assert torch.equal(chosen(batch, stored=False), chosen(zeroed, stored=True))
    assert not torch.allclose(chosen(batch, stored=True), chosen(zeroed, stored=True))


# With the real buffer.


def play(
    net: LSTMQNetwork, buffer: RecurrentReplayBuffer, lengths: list[int], num_envs: int = 2
) -> dict[float, tuple[Tensor, Tensor, Tensor]]:
    """Fixed-length episodes acted out step by step into `buffer`. An observation's first number names its step: → (h, c, Q) there, from
    unrolling its whole episode at once from the zero state."""
    generator, assembler = torch.Generator().manual_seed(0), buffer.make_assembler()
    known: dict[float, tuple[Tensor, Tensor, Tensor]] = {}
    name = 0.0
    for length in lengths:
        obs = torch.randn(length + 1, num_envs, 3, generator=generator)
        obs[..., 0] = name + torch.arange(obs[..., 0].numel()).view(length + 1, num_envs) / 100
        name += 1
        q = net.q_values_sequence(obs, initial_state=net.initial_state(num_envs)).detach()
        state = net.initial_state(num_envs)
        for t in range(length):
            whole = net.unroll(obs[:t], net.initial_state(num_envs))[1] if t else state
            for env in range(num_envs):
                known[float(obs[t, env, 0])] = (whole[0][:, env].detach(), whole[1][:, env].detach(), q[t, env])
            zeros, ends, starts = np.zeros(num_envs), np.full(num_envs, t == length - 1), np.full(num_envs, t == 0)
            step = Step(obs[t].numpy(), zeros, zeros, obs[t + 1].numpy(), ends, zeros > 0, starts, initial_state=state)
            buffer.add_items(assembler.push(step))
            state = net.act(obs[t], state).state
    return known


@pytest.mark.parametrize(
    ("length", "burn_in", "overlap"), [(4, 0, 0), (4, 0, 2), (6, 2, 0), (6, 2, 4), (6, 3, 5), (5, 3, 0)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_state_a_chunk_is_trained_from_is_that_of_its_episode_unrolled_from_the_start(
    length: int, burn_in: int, overlap: int, layers: int
) -> None:
    # With the weights unchanged since acting: the stored state, burned in, is exactly what the whole episode gives at that step, and so
    # is every Q-value after it. Episodes of 1 and 2 steps are shorter than the burn-in, 11 fills several chunks.
    net = lstm(0, layers=layers)
    buffer = RecurrentReplayBuffer(1000, 2, (3,), length, 6, layers, overlap, burn_in=burn_in, seed=0)
    known = play(net, buffer, [11, 1, 2, 7, length])
    batch = buffer.sample(200)
    view = SequenceView(gamma=0.9, burn_in=burn_in, n_step=2)
    h, c = view.start_state(batch, net)
    aligned = view.align(batch, net, net, backup=greedy_backup(True), generator=torch.Generator())
    assert aligned.mask is not None
    trained = set()
    for b in range(200):
        first = float(batch["obs"][burn_in, b, 0])
        torch.testing.assert_close((h[:, b], c[:, b]), known[first][:2], atol=1e-5, rtol=1e-4)
        for t in range(length - burn_in):
            if aligned.mask[t, b]:
                step = float(batch["obs"][burn_in + t, b, 0])
                trained.add(step)
                torch.testing.assert_close(aligned.chosen[t, b].detach(), known[step][2][0], atol=1e-5, rtol=1e-4)
    assert trained == set(known), "every step of every episode is trained in some chunk"


# Randomness of the networks.


class _RecordingHead(nn.Module):
    """An implicit head that returns its levels and noise, so that alignment can be read off: [T, B, A, N], equal for all actions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Draws] = []

    draws_taus = True

    def forward(self, core: Tensor, draws: Draws) -> Tensor:
        self.seen.append(draws)
        if draws.taus is None:  # acting levels
            return torch.zeros(*core.shape[:2], 2, 1)
        assert core.shape[:2] == draws.taus.shape[:2]
        return draws.taus[:, :, None, :].expand(-1, -1, 2, -1) + 0 * core[..., None]

    def q_values(self, out: Tensor) -> Tensor:
        return out.mean(-1)


class _DrawingNetwork(TableNetwork):
    def __init__(self, count: int) -> None:
        super().__init__([[0.0, 0.0]])
        self.head = _RecordingHead()
        self.count = count

    def draw(self, generator: torch.Generator, batch_shape: tuple[int, ...], role: str) -> Draws:
        return Draws(torch.rand(3, generator=generator), torch.rand(*batch_shape, self.count, generator=generator))


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("n_step", [1, 2])
def test_levels_stay_with_their_time_step(double_q: bool, n_step: int) -> None:
    online, target = _DrawingNetwork(4), _DrawingNetwork(5)
    chunk = table_chunk([0, 0, 0, 0], [1, 1, 1])
    view = SequenceView(gamma=GAMMA, n_step=n_step)
    aligned = view.align(chunk, online, target, backup=greedy_backup(double_q), generator=torch.Generator().manual_seed(0))
    # The head returns its levels: what it predicted for step t must be the levels handed to the rule for step t …
    assert aligned.taus is not None and torch.equal(aligned.chosen, aligned.taus) and aligned.chosen.shape == (3, 1, 4)
    # … and the bootstrap of step t the target's levels at t + k; target levels are drawn for times 1 … 3.
    drawn = target.head.seen[0].taus
    assert drawn is not None and drawn.shape == (3, 1, 5)
    at = [0, 1, 2] if n_step == 1 else [1, 2, 2]
    assert torch.equal(aligned.bootstrap.outputs, drawn[at])


def test_noise_is_drawn_once_per_network_and_independently() -> None:
    online, target = _DrawingNetwork(1), _DrawingNetwork(1)
    view = SequenceView(gamma=GAMMA)
    view.align(table_chunk([0, 0, 0], [1, 1]), online, target, backup=greedy_backup(True), generator=torch.Generator().manual_seed(0))
    (mine, selecting), (theirs,) = online.head.seen, target.head.seen
    assert mine.noise is not None and theirs.noise is not None and not torch.equal(mine.noise, theirs.noise)
    assert selecting.noise is mine.noise, "the network that selects is the one that learns"


@pytest.mark.parametrize("dueling", [False, True])
def test_a_noisy_network_draws_anew_per_update(dueling: bool) -> None:
    online, target = lstm(0, noisy=True, dueling=dueling), lstm(0, noisy=True, dueling=dueling)
    batch = random_chunks(0, length=4)
    generator = torch.Generator().manual_seed(0)
    view = SequenceView(gamma=0.9)
    first, second = (view.align(batch, online, target, backup=greedy_backup(True), generator=generator).chosen for _ in range(2))
    assert not torch.allclose(first, second)


# Performance properties that need no clock.


@pytest.mark.parametrize("n_step", [1, 3])
def test_nothing_depends_on_the_data_in_shape_or_control_flow(n_step: int) -> None:
    # Under fake tensors any `.item()` or data-dependent shape raises: this is what torch.compile and CUDA graphs need.
    batch = random_chunks(0, length=6, burn_in=2)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        online, target = lstm(0), lstm(1)
        fake = {key: mode.from_tensor(value) for key, value in batch.items()}
        view = SequenceView(gamma=0.9, n_step=n_step, burn_in=2)
        aligned = view.align(fake, online, target, backup=greedy_backup(True), generator=torch.Generator())
        assert aligned.chosen.shape == aligned.bootstrap.outputs.shape == aligned.rewards.shape == aligned.discounts.shape == (4, 4)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_each_network_is_unrolled_by_one_lstm_call_and_one_for_its_burn_in(burn_in: int) -> None:
    online, target = lstm(0), lstm(1)
    lengths: dict[str, list[int]] = {"online": [], "target": []}
    for name, net in (("online", online), ("target", target)):
        net.core.lstm.register_forward_hook(lambda module, inputs, output, name=name: lengths[name].append(len(inputs[0])))
    batch = random_chunks(0, length=6, burn_in=burn_in)
    SequenceView(gamma=0.9, n_step=3, burn_in=burn_in).align(batch, online, target, backup=greedy_backup(True), generator=torch.Generator())
    expected = ([burn_in] if burn_in else []) + [6 - burn_in + 1]
    assert lengths == {"online": expected, "target": expected}


def test_a_burn_in_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="3 steps leave nothing to train on after a burn-in of 3"):
        align(table_chunk([1, 2, 3, 4], [1, 2, 3]), burn_in=3)
    with pytest.raises(ValueError, match="n_step"):
        SequenceView(gamma=0.9, n_step=0)


def test_every_sequence_may_have_its_own_discount() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, dones = torch.randn(6, 3, generator=generator), (torch.rand(6, 3, generator=generator) < 0.2).float()
    gammas = torch.tensor([0.9, 0.5, 0.0])
    for n_step in (1, 3):
        together = n_step_returns(rewards, dones, torch.ones(6, 3), gamma=gammas, n_step=n_step)
        for b, gamma in enumerate(gammas.tolist()):
            alone = n_step_returns(rewards, dones, torch.ones(6, 3), gamma=gamma, n_step=n_step)
            for ours, theirs in zip(together, alone, strict=True):
                torch.testing.assert_close(ours[:, b], theirs[:, b])
