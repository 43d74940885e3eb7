"""Backups: from what the networks say of every next action to what a target bootstraps from.

A backup stands between a view, which runs the networks and aligns time, and a rule, which makes the target. It works on any rank: `...` is
[B] for transitions and [T, B] for sequences. No gradient flows through anything it sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def take_action(out: Tensor, actions: Tensor) -> Tensor:
    """The outputs of the given actions: [..., A] → [...], or [..., A, N] → [..., N]."""
    if out.ndim == actions.ndim + 1:
        return out.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    index = actions[..., None, None].expand(*actions.shape, 1, out.shape[-1])
    return out.gather(-2, index).squeeze(-2)


class Seen(NamedTuple):
    """What a backup may read. Outputs are a head's: [..., A], or [..., A, N] with N atoms or quantiles per action."""

    next_outputs: Tensor  # target network, where the return bootstraps
    q_values: Callable[[Tensor], Tensor]  # outputs → Q-values [..., A]; for a scalar head the same tensor
    actions: Tensor  # taken, [...]
    online_next_q_values: Tensor | None = None  # online network, where the return bootstraps, [..., A]; if `needs_online`
    outputs: Tensor | None = None  # target network, where the action was taken; if `needs_current`
    next_mask: Tensor | None = None  # true where a next action is allowed, [..., A]; None: all are
    mask: Tensor | None = None  # true where an action was allowed where one was taken, [..., A]; None: all were


class Bootstrap(NamedTuple):
    """What a target bootstraps from: the outputs of one next action, or those of all with their `probabilities`.

    A mixture's value is Σ_a π_a (z_a + shift_a). `bonus` is added to the reward of the action taken, that is to the first step's of an
    n-step return. Shift and bonus are in the reward's units, whatever units the outputs are in.
    """

    outputs: Tensor  # [...] or [..., N]; of a mixture [..., A] or [..., A, N]
    probabilities: Tensor | None = None  # [..., A]
    shift: Tensor | None = None  # [..., A]
    bonus: Tensor | None = None  # [...]


class Backup(ABC):
    """Says by two attributes what it wants to see; each costs a forward pass of a network."""

    needs_online = False
    needs_current = False

    @abstractmethod
    def __call__(self, seen: Seen) -> Bootstrap: ...


def allowed(q_values: Tensor, mask: Tensor | None) -> Tensor:
    """Q-values among which the best allowed action is the largest."""
    return q_values if mask is None else q_values.masked_fill(~mask, -torch.inf)


class MaxBackup(Backup):
    """The action that the target network itself thinks best (Mnih et al. 2015)."""

    def __call__(self, seen: Seen) -> Bootstrap:
        outputs = seen.next_outputs
        q_values = seen.q_values(outputs)
        if seen.next_mask is None and q_values.ndim == outputs.ndim:
            return Bootstrap(q_values.amax(-1))
        # Not the largest allowed value itself: after a termination no action may be allowed, and Γ·(−∞) with Γ = 0 is NaN.
        return Bootstrap(take_action(outputs, allowed(q_values, seen.next_mask).argmax(-1)))


class DoubleBackup(Backup):
    """The online network selects the action, the target network values it (arXiv:1509.06461)."""

    needs_online = True

    def __call__(self, seen: Seen) -> Bootstrap:
        assert seen.online_next_q_values is not None, "asked for by `needs_online`"
        return Bootstrap(take_action(seen.next_outputs, allowed(seen.online_next_q_values, seen.next_mask).argmax(-1)))


def greedy_backup(double_q: bool) -> Backup:
    """The backup of an algorithm that has no other: max, or double Q-learning."""
    return DoubleBackup() if double_q else MaxBackup()
