"""Views: run the networks on a batch and align time, so that a rule sees only numbers for actions, rewards and discounts.

`TransitionView` serves transitions [B]; `SequenceView` (sequence_view.py) burn-in, unroll and n-step over [T, B].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.beside import Beside
from rl_training.algorithms.value_losses import put_action, take_action
from rl_training.models.heads import Draws
from rl_training.types import Batch


class Aligned(NamedTuple):
    """What a rule and the reduction need, all [...] or [..., N]; gradients flow through `chosen` only."""

    chosen: Tensor  # online network, action taken
    bootstrap: Tensor  # target network, next action
    rewards: Tensor  # discounted sum over the steps really taken
    discounts: Tensor  # γ^k, 0 after a termination
    taus: Tensor | None  # levels of `chosen`, where the head samples them
    mask: Tensor | None  # 1 on the steps that count; None: all do
    weights: Tensor | None  # importance weights [B]
    pullback: Callable[[Tensor], list[Tensor]] | None = None
    """∂L/∂chosen → the gradients of the online network's parameters, where it has them by hand; `chosen` then has no graph."""


class View(Protocol):
    def align(self, batch: Batch, online: Any, target: Any, *, double_q: bool, generator: torch.Generator) -> Aligned: ...


class TransitionView:
    """Transitions [B]. A batch's own `discounts` win over γ·(1 − dones)."""

    def __init__(self, *, gamma: float) -> None:
        self.gamma = gamma

    def align(self, batch: Batch, online: Any, target: Any, *, double_q: bool, generator: torch.Generator) -> Aligned:
        obs, next_obs, actions = batch["obs"], batch["next_obs"], batch["actions"]
        shape = actions.shape
        online_draws, target_draws = online.draw(generator, shape, "online"), target.draw(generator, shape, "target")
        beside = Beside(next_obs)
        with torch.no_grad():
            with beside:
                next_out = target.forward(next_obs, target_draws)
            # Double-Q (arXiv:1509.06461): which network selects the next action; the target network always values it.
            # An implicit head selects at its acting levels: the action it would take.
            select = online.q_values(next_obs, Draws(online_draws.noise)) if double_q else None
            taped = online.taped(obs, online_draws) if hasattr(online, "taped") else None
            if taped is not None:
                out, gradients = taped
                chosen = take_action(out, actions)
        if taped is None:
            chosen = take_action(online(obs, online_draws), actions)
        beside.join()
        with torch.no_grad():
            if select is None:
                select = target.head.q_values(next_out)
            bootstrap = next_out.amax(-1) if select is next_out else take_action(next_out, select.argmax(-1))
        discounts = batch.get("discounts")
        if discounts is None:
            discounts = self.gamma * (1 - batch["dones"])
        pullback = None if taped is None else lambda grad: gradients(put_action(grad, actions, out))
        return Aligned(chosen, bootstrap, batch["rewards"], discounts, online_draws.taus, None, batch.get("weights"), pullback)
