"""The view of recurrent learners: burn-in, one unroll per network, and n-step returns inside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rl_training.algorithms.beside import Beside
from rl_training.algorithms.value_losses import take_action
from rl_training.algorithms.views import Aligned
from rl_training.models.heads import Draws
from rl_training.models.q_network import CoreState
from rl_training.types import Batch


class NStepReturns(NamedTuple):
    """Per step t, all [T, B]: R_t = Σ_{i<k} γ^i r_{t+i}, γ^k·(1 − terminated), and k, the steps really accumulated."""

    rewards: Tensor
    discounts: Tensor
    steps: Tensor  # int64, 1 ≤ k ≤ min(n, T − t): the bootstrap stands at t + k


def n_step_returns(rewards: Tensor, dones: Tensor, mask: Tensor, *, gamma: float, n_step: int) -> NStepReturns:
    """n-step returns within a sequence whose valid steps (mask 1) come before its padding; all [T, B].

    k is the number of steps until n are summed, a step terminates, or the valid steps end, whichever is first: a tail shorter than n keeps
    its own γ^k. Termination does not bootstrap; truncation and the end of the sequence do, at the observation after the last valid step.
    """
    if n_step == 1:
        return NStepReturns(rewards, gamma * (1 - dones), torch.ones_like(dones, dtype=torch.int64))
    # goes_on[t]: the return that holds step t goes on to t + 1. `alive[..., i]` is whether it reaches t + 1 + i.
    goes_on = pad((1 - dones[:-1]) * mask[1:], (0, 0, 0, n_step - 1))
    alive = goes_on.unfold(0, n_step - 1, 1).cumprod(-1)  # [T, B, n−1]
    later = pad(rewards[1:], (0, 0, 0, n_step - 1)).unfold(0, n_step - 1, 1)  # r_{t+1} … r_{t+n−1}
    powers = gamma ** torch.arange(1, n_step, device=rewards.device)
    returns = rewards + (alive * later * powers).sum(-1)
    steps = 1 + alive.sum(-1).long()
    time = torch.arange(len(rewards), device=rewards.device)[:, None]
    return NStepReturns(returns, gamma**steps * (1 - dones.gather(0, time + steps - 1)), steps)


class SequenceView:
    """Chunks [T, B] that cross no episode (Kapturowski et al., ICLR 2019, §2.3 and §3).

    Each network is unrolled once over the T + 1 observations, from the state it had when the first was seen (`initial_h`, `initial_c`;
    with `use_stored_state=False` from zeros). The first `burn_in` steps only bring that state up to date: no gradient, no loss, no
    priority. In a chunk that starts an episode (`episode_starts` at the burn-in's end) they are padding, and the stored (zero) state is
    used as it is.
    The bootstrap of step t is the target network's value at t + k of that same unroll (see `n_step_returns`); with double-Q the online
    network, whose unroll then covers the last observation too, selects its action there.
    """

    def __init__(self, *, gamma: float, n_step: int = 1, burn_in: int = 0, use_stored_state: bool = True) -> None:
        if n_step < 1 or burn_in < 0:
            raise ValueError(f"n_step must be >= 1 and burn_in >= 0, got {n_step} and {burn_in}")
        self.gamma, self.n_step, self.burn_in, self.use_stored_state = gamma, n_step, burn_in, use_stored_state

    def align(self, batch: Batch, online: Any, target: Any, *, double_q: bool, generator: torch.Generator) -> Aligned:
        rewards, dones, mask, actions = (batch[key][self.burn_in :] for key in ("rewards", "dones", "mask", "actions"))
        if not len(rewards):
            raise ValueError(f"sequences of {len(batch['rewards'])} steps leave nothing to train on after a burn-in of {self.burn_in}")
        # Where a chunk is padded on the right, the observation after its last valid step is already in `obs`.
        obs = torch.cat([batch["obs"][self.burn_in :], batch["next_obs"][-1:]])  # [T + 1, B, ...]
        steps, batch_size = rewards.shape
        # What the head says of an observation selects there too, except where it says it at levels drawn for the loss.
        reused = double_q and not online.head.draws_taus
        online_draws, target_draws = (
            net.draw(generator, (steps, batch_size), role) for net, role in ((online, "online"), (target, "target"))
        )
        beside, apart = Beside(obs), Beside(obs, lane=1)
        with apart, torch.no_grad():
            returns = n_step_returns(rewards, dones, mask, gamma=self.gamma, n_step=self.n_step)
        with beside, torch.no_grad():
            target_core, _ = target.unroll_core(obs, self.start_state(batch, target))
            next_out = target.head(target_core[1:], target_draws)  # of the observations after steps 0 … T − 1
        core, _ = online.unroll_core(obs if double_q else obs[:-1], self.start_state(batch, online))
        out = online.head(core if reused else core[:steps], online_draws)
        beside.join()
        apart.join()
        with torch.no_grad():
            # Double-Q (arXiv:1509.06461): which network selects the next action; the target network always values it.
            if not double_q:
                select = target.head.q_values(next_out)
            elif reused:
                select = online.head.q_values(out[1:])
            else:  # as the action it would take: at its acting levels
                select = online.head.q_values(online.head(core[1:], Draws(online_draws.noise)))
            bootstrap = take_action(next_out, select.argmax(-1))  # [T, B] or [T, B, N], for t + 1
            if self.n_step > 1:
                bootstrap = take_time(bootstrap, returns.steps)
        taus = None if online_draws.taus is None else online_draws.taus[:steps]
        return Aligned(take_action(out[:steps], actions), bootstrap, returns.rewards, returns.discounts, taus, mask, batch.get("weights"))

    @torch.no_grad()
    def start_state(self, batch: Batch, network: Any) -> CoreState:
        """The state `network` has before the first trained step, each (h, c) [L, B, H]."""
        state: CoreState = (batch["initial_h"], batch["initial_c"])
        if not self.use_stored_state:
            state = network.initial_state(state[0].shape[1])
        if not self.burn_in:
            return state
        obs, starts = batch["obs"][: self.burn_in], batch["episode_starts"]
        burned = state
        if 2 * self.burn_in <= len(starts):
            _, burned = network.unroll_core(obs, state)
        else:
            # A prefix longer than the trained part may be empty at first and hold its episode's start: there the state is zero.
            for t in range(self.burn_in):
                _, burned = network.unroll_core(obs[t : t + 1], network.reset_state(burned, starts[t]))
        # An episode that starts where the burn-in ends had nothing before: its prefix is padding.
        padded = starts[self.burn_in].bool()[:, None]
        return tuple(torch.where(padded, stored, new) for stored, new in zip(state, burned, strict=True))


def take_time(values: Tensor, steps: Tensor) -> Tensor:
    """values[t + steps[t] − 1] for each t, along the first axis: [T, B] or [T, B, N], where values[t] belongs to time t + 1."""
    index = torch.arange(len(steps), device=steps.device)[:, None] + steps - 1
    return values.gather(0, index if values.ndim == 2 else index[..., None].expand_as(values))
