"""Rules: what a network's numbers mean, how they become a TD target, and the loss between the two.

A rule works on any rank: `...` is [B] for transitions and [T, B] for sequences. It never sees networks, batches or time; a view
(views.py) has aligned those. Loss = view ∘ rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.distributional_losses import clipped_share, cross_entropy, entropy, midpoints, project, quantile_huber_loss
from rl_training.algorithms.value_losses import rescale, td_target, unrescale


class RuleLoss:
    """Per element, all [...]: the loss (with its graph), what prioritized replay should rank it by, and what is reported.

    Each is computed when somebody reads it, since most updates are not logged and many not prioritized. `gradient` is ∂loss/∂chosen in
    closed form, [...] or [..., N]: what autograd would give, without its graph.
    """

    def __init__(
        self,
        *,
        loss: Callable[[], Tensor],
        gradient: Callable[[], Tensor],
        priority: Callable[[], Tensor],
        q_value: Callable[[], Tensor],
        target: Callable[[], Tensor],
        td_error: Callable[[], Tensor],
    ) -> None:
        self._make_loss = loss
        self._loss: Tensor | None = None
        self._make = {"gradient": gradient, "priority": priority, "q_value": q_value, "target": target, "td_error": td_error}
        self._made: dict[str, Tensor] = {}

    @property
    def loss(self) -> Tensor:
        if self._loss is None:
            self._loss = self._make_loss()
        return self._loss

    @property
    def gradient(self) -> Tensor:
        return self._read("gradient")

    @property
    def priority(self) -> Tensor:
        return self._read("priority")

    @property
    def q_value(self) -> Tensor:
        return self._read("q_value")

    @property
    def target(self) -> Tensor:
        """The mean of the target."""
        return self._read("target")

    @property
    def td_error(self) -> Tensor:
        """|δ|."""
        return self._read("td_error")

    def _read(self, name: str) -> Tensor:
        if name not in self._made:
            with torch.no_grad():
                self._made[name] = self._make[name]().detach()
        return self._made[name]


ExtraMetric = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(bootstrap, rewards, discounts) → one number per element, [...]."""


class Rule(Protocol):
    """One kind of TD learning."""

    @property
    def extra_metrics(self) -> Mapping[str, ExtraMetric]:
        """What this rule alone reports beside the metrics of all, computed only when somebody reads it."""
        ...

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The finished target, from the target network's numbers for the chosen next action, [...] or [..., N]."""
        ...

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None) -> RuleLoss:
        """The loss between the online network's numbers for the action taken and the target."""
        ...


def bellman(rewards: Tensor, discounts: Tensor, values: Tensor, *, value_rescaling: bool) -> Tensor:
    """R + Γ·z, or R2D2's h(R + Γ·h⁻¹(z)), of values [...] or [..., N] with rewards and discounts [...].

    Both map return distributions atom by atom and quantile by quantile, since they rise with z.
    """
    if values.ndim > rewards.ndim:
        rewards, discounts = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
    if value_rescaling:
        return rescale(td_target(rewards, discounts, unrescale(values)))
    return td_target(rewards, discounts, values)


class ScalarRule:
    """Huber loss on the TD error, δ = y − Q(s, a) (Mnih et al. 2015); by option in R2D2's rescaled space:
    y = h(R + Γ·h⁻¹(Q')), and δ and the priority live there too."""

    extra_metrics: ClassVar[Mapping[str, ExtraMetric]] = {}

    def __init__(self, *, value_rescaling: bool = False) -> None:
        self.value_rescaling = value_rescaling

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        return bellman(rewards, discounts, bootstrap, value_rescaling=self.value_rescaling)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> RuleLoss:
        def error() -> Tensor:
            return (chosen - target).abs_()

        return RuleLoss(
            loss=lambda: torch.nn.functional.huber_loss(chosen, target, reduction="none"),
            gradient=lambda: (chosen - target).clamp_(-1, 1),  # H₁'(x) = x where |x| ≤ 1, else its sign
            priority=error,
            q_value=lambda: chosen,
            target=lambda: target,
            td_error=error,
        )


class CategoricalRule:
    """C51 (arXiv:1707.06887): cross-entropy to the projected distribution of R + Γ·Z'. Numbers are logits over the atoms.

    The priority is the KL divergence from target to prediction (arXiv:1710.02298), which unlike the cross-entropy falls to 0 where the
    prediction is right; the TD error reported is the difference of the means. With `value_rescaling` atoms and means are in h-space.
    """

    def __init__(self, *, num_atoms: int, v_min: float, v_max: float, value_rescaling: bool = False) -> None:
        if num_atoms < 2 or not v_min < v_max:
            raise ValueError(f"a support needs num_atoms >= 2 and v_min < v_max, got {num_atoms}, {v_min} and {v_max}")
        self.num_atoms, self.v_min, self.v_max, self.value_rescaling = num_atoms, v_min, v_max, value_rescaling
        self.support = torch.linspace(v_min, v_max, num_atoms)
        self.extra_metrics: Mapping[str, ExtraMetric] = {"clipped_share": self.clipped_share}

    def _moved(self, rewards: Tensor, discounts: Tensor) -> Tensor:
        self.support = self.support.to(rewards.device)  # moves once, then is free
        support = self.support.expand(*rewards.shape, self.num_atoms)
        return bellman(rewards, discounts, support, value_rescaling=self.value_rescaling)

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The projected distribution, [..., N]. After a termination Γ is 0 and all mass is at R."""
        return project(torch.softmax(bootstrap, -1), self._moved(rewards, discounts), self.v_min, self.v_max)

    def clipped_share(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The target mass that left the support: returns that this run has and its atoms cannot say, [...]."""
        return clipped_share(torch.softmax(bootstrap, -1), self._moved(rewards, discounts), self.v_min, self.v_max)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> RuleLoss:
        support = self.support

        def q_value() -> Tensor:
            return torch.softmax(chosen, -1) @ support

        parts = RuleLoss(
            loss=lambda: cross_entropy(chosen, target),
            gradient=lambda: torch.softmax(chosen, -1) - target,  # of the logits, where the target's mass is 1
            priority=lambda: (parts.loss - entropy(target)).clamp_(min=0),  # rounding alone makes it negative
            q_value=q_value,
            target=lambda: target @ support,
            td_error=lambda: (target @ support - q_value()).abs_(),
        )
        return parts


class QuantileRule:
    """Quantile regression of R + Γ·Z', Huber-smoothed: QR-DQN (arXiv:1710.10044) at fixed levels, IQN (arXiv:1806.06923) at sampled ones.

    Priority and TD error are the mean absolute TD error over all pairs of quantiles, mean_ij |target_j − θ_i|: for a single quantile DQN's
    |δ|. With `value_rescaling` quantiles are in h-space.
    """

    extra_metrics: ClassVar[Mapping[str, ExtraMetric]] = {}

    def __init__(self, *, kappa: float = 1.0, value_rescaling: bool = False) -> None:
        if kappa < 0:
            raise ValueError(f"kappa must be >= 0, got {kappa}")
        self.kappa, self.value_rescaling = kappa, value_rescaling
        self._levels = midpoints(1)

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The moved quantiles, [..., M]."""
        return bellman(rewards, discounts, bootstrap, value_rescaling=self.value_rescaling)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> RuleLoss:
        if taus is None:
            count = chosen.shape[-1]
            if len(self._levels) != count or self._levels.device != chosen.device:
                self._levels = midpoints(count, chosen.device)
            taus = self._levels
        loss, error, gradient = quantile_huber_loss(chosen, taus, target, self.kappa)
        return RuleLoss(
            loss=lambda: loss,
            gradient=lambda: gradient,
            priority=lambda: error,
            q_value=lambda: chosen.mean(-1),
            target=lambda: target.mean(-1),
            td_error=lambda: error,
        )


def make_rule(
    head: Literal["scalar", "categorical", "quantile", "implicit"],
    *,
    kappa: float = 1.0,
    v_min: float = -10.0,
    v_max: float = 10.0,
    num_atoms: int = 51,
    value_rescaling: bool = False,
) -> Rule:
    """The rule of a kind of head; each takes what is its own of the keywords."""
    if head == "categorical":
        return CategoricalRule(num_atoms=num_atoms, v_min=v_min, v_max=v_max, value_rescaling=value_rescaling)
    if head in ("quantile", "implicit"):
        return QuantileRule(kappa=kappa, value_rescaling=value_rescaling)
    return ScalarRule(value_rescaling=value_rescaling)
