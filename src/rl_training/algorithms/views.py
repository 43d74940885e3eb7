"""Views: run the networks on a batch and align time, so that backup and rule see only outputs for actions, rewards and discounts.

`TransitionView` serves transitions [B]; `SequenceView` (sequence_view.py) burn-in, unroll and n-step over [T, B].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.backups import Backup, Bootstrap, Seen, take_action
from rl_training.models.heads import Draws
from rl_training.types import Batch


class Aligned(NamedTuple):
    """What a rule and the reduction need, all [...] or [..., N]; gradients flow through `chosen` only."""

    chosen: Tensor  # online network, action taken
    bootstrap: Bootstrap  # target network, next action or actions
    rewards: Tensor  # discounted sum over the steps really taken, with the backup's bonus
    discounts: Tensor  # γ^k, 0 after a termination
    taus: Tensor | None  # levels of `chosen`, where the head samples them
    mask: Tensor | None  # 1 on the steps that count; None: all do
    weights: Tensor | None  # importance weights [B]


RunPasses: TypeAlias = Callable[..., list[Any]]
"""Calls functions that do not need each other, and gives their results."""


def in_turn(*passes: Callable[[], Any]) -> list[Any]:
    return [each() for each in passes]


def action_masks(batch: Batch, begin: int = 0) -> dict[str, Tensor | None]:
    """What a backup sees of a batch's `next_action_masks` and `action_masks`, from `begin` on; None where it has none: all are allowed."""
    given = {"next_mask": batch.get("next_action_masks"), "mask": batch.get("action_masks")}
    return {name: None if masks is None else masks[begin:].bool() for name, masks in given.items()}


class View(Protocol):
    run_passes: RunPasses

    def align(self, batch: Batch, online: Any, target: Any, *, backup: Backup, generator: torch.Generator) -> Aligned: ...


class TransitionView:
    """Transitions [B]. A batch's own `discounts` win over γ·(1 − dones); its masks say what the backup may choose."""

    def __init__(self, *, gamma: float) -> None:
        self.gamma = gamma
        self.run_passes: RunPasses = in_turn

    def align(self, batch: Batch, online: Any, target: Any, *, backup: Backup, generator: torch.Generator) -> Aligned:
        obs, next_obs, actions = batch["obs"], batch["next_obs"], batch["actions"]
        shape = actions.shape
        online_draws, target_draws = online.draw(generator, shape, "online"), target.draw(generator, shape, "target")

        def target_pass() -> tuple[Tensor, Tensor | None]:
            with torch.no_grad():
                next_outputs = target.forward(next_obs, target_draws)
                return next_outputs, target.forward(obs, target_draws) if backup.needs_current else None

        def online_pass() -> tuple[Tensor | None, Tensor]:
            select = None
            if backup.needs_online:
                with torch.no_grad():  # an implicit head selects at its acting levels: the action it would take
                    select = online.q_values(next_obs, Draws(online_draws.noise))
            return select, take_action(online(obs, online_draws), actions)

        (next_outputs, current), (select, chosen) = self.run_passes(target_pass, online_pass)
        with torch.no_grad():
            bootstrap = backup(Seen(next_outputs, target.head.q_values, actions, select, current, **action_masks(batch)))
            rewards = batch["rewards"] if bootstrap.bonus is None else batch["rewards"] + bootstrap.bonus
        discounts = batch.get("discounts")
        if discounts is None:
            discounts = (batch["dones"] * -self.gamma).add_(self.gamma)  # γ·(1 − done) in two kernels; `1 − done` goes by way of Python
        return Aligned(chosen, bootstrap, rewards, discounts, online_draws.taus, None, batch.get("weights"))
