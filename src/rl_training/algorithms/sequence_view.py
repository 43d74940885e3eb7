"""The view of recurrent learners: burn-in, one unroll per network, and n-step returns inside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rl_training.algorithms.backups import Backup, Bootstrap, Seen, take_action
from rl_training.algorithms.views import Aligned, RunPasses, action_masks, in_turn
from rl_training.models.heads import Draws
from rl_training.models.network import CoreState
from rl_training.types import NO_ACTION, Batch, Previous, stored_state


class NStepReturns(NamedTuple):
    """Per step t, all [T, B]: R_t = Σ_{i<k} γ^i r_{t+i}, γ^k·(1 − terminated), and k, the steps really accumulated."""

    rewards: Tensor
    discounts: Tensor
    steps: Tensor  # int64, 1 ≤ k ≤ min(n, T − t): the bootstrap stands at t + k


def n_step_returns(rewards: Tensor, dones: Tensor, mask: Tensor, *, gamma: float | Tensor, n_step: int) -> NStepReturns:
    """n-step returns within a sequence whose valid steps (mask 1) come before its padding; all [T, B].

    k is the number of steps until n are summed, a step terminates, or the valid steps end, whichever is first: a tail shorter than n keeps
    its own γ^k. Termination does not bootstrap; truncation and the end of the sequence do, at the observation after the last valid step.
    gamma: one for all, or one for each sequence [B].
    """
    if n_step == 1:
        return NStepReturns(rewards, gamma * (1 - dones), torch.ones_like(dones, dtype=torch.int64))
    # goes_on[t]: the return that holds step t goes on to t + 1. `alive[..., i]` is whether it reaches t + 1 + i.
    goes_on = pad((1 - dones[:-1]) * mask[1:], (0, 0, 0, n_step - 1))
    alive = goes_on.unfold(0, n_step - 1, 1).cumprod(-1)  # [T, B, n−1]
    later = pad(rewards[1:], (0, 0, 0, n_step - 1)).unfold(0, n_step - 1, 1)  # r_{t+1} … r_{t+n−1}
    powers = (gamma.unsqueeze(-1) if isinstance(gamma, Tensor) else gamma) ** torch.arange(1, n_step, device=rewards.device)
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
    The bootstrap of step t is what the backup makes of the target network's outputs at t + k of that same unroll (see `n_step_returns`);
    where the backup needs the online network's there too, its unroll covers the last observation.
    """

    def __init__(self, *, gamma: float, n_step: int = 1, burn_in: int = 0, use_stored_state: bool = True) -> None:
        if n_step < 1 or burn_in < 0:
            raise ValueError(f"n_step must be >= 1 and burn_in >= 0, got {n_step} and {burn_in}")
        self.gamma, self.n_step, self.burn_in, self.use_stored_state = gamma, n_step, burn_in, use_stored_state
        self.run_passes: RunPasses = in_turn

    def align(self, batch: Batch, online: Any, target: Any, *, backup: Backup, generator: torch.Generator) -> Aligned:
        rewards, dones, mask, actions = (batch[key][self.burn_in :] for key in ("rewards", "dones", "mask", "actions"))
        if not len(rewards):
            raise ValueError(f"sequences of {len(batch['rewards'])} steps leave nothing to train on after a burn-in of {self.burn_in}")
        # Where a chunk is padded on the right, the observation after its last valid step is already in `obs`.
        obs = torch.cat([batch["obs"][self.burn_in :], batch["next_obs"][-1:]])  # [T + 1, B, ...]
        led = previous_steps(batch)
        previous = None if led is None else Previous(*(part[self.burn_in :] for part in led))
        steps, batch_size = rewards.shape
        online_draws, target_draws = (
            net.draw(generator, (steps, batch_size), role) for net, role in ((online, "online"), (target, "target"))
        )

        def target_pass() -> tuple[Tensor, Tensor | None]:
            with torch.no_grad():
                core, _ = _unroll(target, obs, self.start_state(batch, target), previous)
                next_outputs = target.head(core[1:], target_draws)  # of the observations after steps 0 … T − 1
                return next_outputs, target.head(core[:-1], target_draws) if backup.needs_current else None

        def online_pass() -> tuple[Tensor | None, Tensor]:
            core, _ = _unroll(online, obs if backup.needs_online else obs[:-1], self.start_state(batch, online), previous)
            # What the head says of an observation serves there too, except where it says it at levels drawn for the loss.
            reused = backup.needs_online and not online.head.draws_taus
            outputs = online.head(core if reused else core[:steps], online_draws)
            select = None
            if backup.needs_online:
                with torch.no_grad():  # an implicit head selects at its acting levels: the action it would take
                    select = online.head.q_values(outputs[1:] if reused else online.head(core[1:], Draws(online_draws.noise)))
            return select, take_action(outputs[:steps], actions)

        def returns() -> NStepReturns:
            with torch.no_grad():
                return n_step_returns(rewards, dones, mask, gamma=self.gamma, n_step=self.n_step)

        n_step, (next_outputs, current), (select, chosen) = self.run_passes(returns, target_pass, online_pass)
        with torch.no_grad():
            masks = action_masks(batch, self.burn_in)
            bootstrap = backup(Seen(next_outputs, target.head.q_values, actions, select, current, **masks))  # for t + 1
            summed = n_step.rewards if bootstrap.bonus is None else n_step.rewards + bootstrap.bonus
            if self.n_step > 1:
                bootstrap = bootstrap_at(bootstrap, n_step.steps)
        taus = None if online_draws.taus is None else online_draws.taus[:steps]
        return Aligned(chosen, bootstrap, summed, n_step.discounts, taus, mask, batch.get("weights"))

    @torch.no_grad()
    def start_state(self, batch: Batch, network: Any) -> CoreState:
        """The state `network` has before the first trained step, each (h, c) [L, B, H]."""
        state: CoreState = stored_state(batch)
        if not self.use_stored_state:
            state = network.initial_state(state[0].shape[1])
        if not self.burn_in:
            return state
        obs, starts, previous = batch["obs"][: self.burn_in], batch["episode_starts"], previous_steps(batch)
        burned = state
        if 2 * self.burn_in <= len(starts):
            _, burned = _unroll(network, obs, state, previous)
        else:
            # A prefix longer than the trained part may be empty at first and hold its episode's start: there the state is zero.
            for t in range(self.burn_in):
                led = None if previous is None else Previous(*(part[t:] for part in previous))
                _, burned = _unroll(network, obs[t : t + 1], network.reset_state(burned, starts[t]), led)
        # An episode that starts where the burn-in ends had nothing before: its prefix is padding.
        padded = starts[self.burn_in].bool()[:, None]
        return tuple(torch.where(padded, stored, new) for stored, new in zip(state, burned, strict=True))


def previous_steps(batch: Batch) -> Previous | None:
    """What led to each of the L + 1 observations of a chunk, [L + 1, B]; None where the batch does not say.

    Within a chunk that is the step before; where an episode starts, nothing; and for the first observation what was stored with it.
    """
    if "previous_actions" not in batch:
        return None
    starts = batch["episode_starts"][1:].bool()
    actions, rewards = batch["actions"], batch["rewards"]
    return Previous(
        torch.cat([batch["previous_actions"][:1], actions[:-1].masked_fill(starts, NO_ACTION), actions[-1:]]),
        torch.cat([batch["previous_rewards"][:1], rewards[:-1].masked_fill(starts, 0.0), rewards[-1:]]),
    )


def _unroll(network: Any, obs: Tensor, state: CoreState, previous: Previous | None) -> tuple[Tensor, CoreState]:
    """`unroll_core`, told what led to these observations (the first ones of `previous`) where it reads that."""
    if previous is None:
        unrolled: tuple[Tensor, CoreState] = network.unroll_core(obs, state)
    else:
        unrolled = network.unroll_core(obs, state, previous=Previous(*(part[: len(obs)] for part in previous)))
    return unrolled


def bootstrap_at(bootstrap: Bootstrap, steps: Tensor) -> Bootstrap:
    """What each step t bootstraps from `steps[t]` later; the bonus stays where the action was taken."""

    def taken(values: Tensor | None) -> Tensor | None:
        return None if values is None else take_time(values, steps)

    return Bootstrap(take_time(bootstrap.outputs, steps), taken(bootstrap.probabilities), taken(bootstrap.shift), bootstrap.bonus)


def take_time(values: Tensor, steps: Tensor) -> Tensor:
    """values[t + steps[t] − 1] for each t, along the first axis: [T, B, ...], where values[t] belongs to time t + 1."""
    index = torch.arange(len(steps), device=steps.device)[:, None] + steps - 1
    return values.gather(0, index.view(*index.shape, *[1] * (values.ndim - 2)).expand_as(values))
