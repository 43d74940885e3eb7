"""The one learner behind every value-based algorithm: view → backup → rule → gradient → Adam → target network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from rl_training.algorithms.adam import FlatAdam
from rl_training.algorithms.backups import Backup
from rl_training.algorithms.rules import LazyMetrics, Rule, TDLoss, reduce_loss
from rl_training.algorithms.schedules import Schedule as Schedule  # every learner takes one
from rl_training.algorithms.views import Aligned, View
from rl_training.data.generators import generator_state, load_generator_state
from rl_training.models.flat import flatten_parameters
from rl_training.models.network import Network
from rl_training.models.plain import as_network
from rl_training.types import Batch, OptimizerName, State, UpdateResult


class Outcome(Protocol):
    """What one gradient step leaves to be read."""

    @property
    def metrics(self) -> Mapping[str, Tensor]: ...

    @property
    def td_errors(self) -> Tensor:
        """|δ| as the rule reports it, [B] or [T, B]."""
        ...

    @property
    def priorities(self) -> Tensor:
        """What prioritized replay should rank the batch's items by, [B]."""
        ...


class EagerOutcome:
    """Computes each when it is read."""

    __slots__ = ("_aligned", "_learner", "_td")

    def __init__(self, learner: QLearner, td: TDLoss, aligned: Aligned) -> None:
        self._learner, self._td, self._aligned = learner, td, aligned

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        return self._learner.metrics(self._td, self._aligned)

    @property
    def td_errors(self) -> Tensor:
        return self._td.td_error

    @property
    def priorities(self) -> Tensor:
        return self._learner.priorities(self._td, self._aligned)


class Gradient(NamedTuple):
    """∂loss/∂parameters of the online network, in their order (None where the loss does not depend on one), and what it is of."""

    parameters: Sequence[Tensor | None]
    td: TDLoss
    aligned: Aligned


class DifferentiateBatch(Protocol):
    """The gradient of a batch's loss. Networks and parameters are the learner's own unless given."""

    def __call__(self, batch: Batch, online: Any = None, target: Any = None, parameters: Sequence[Tensor] | None = None) -> Gradient: ...


class OptimizerOptions(TypedDict, total=False):
    """How a learner steps, and the seed of what it draws; the defaults are QLearner's."""

    adam_eps: float
    optimizer: OptimizerName
    weight_decay: float
    seed: int


class LearnerOptions(OptimizerOptions, total=False):
    """What every learner takes beside its network, view, backup and rule; the defaults are QLearner's."""

    tau: float  # of a target update; 1 copies
    max_grad_norm: float | None


class QLearner:
    """Owns the online and target network, the optimizer and the randomness of updates. Algorithms choose its view, backup and rule."""

    model_key = "q_network"  # where the acting network stands in `state_dict()`

    def __init__(
        self,
        q_network: Network | nn.Module,
        *,
        view: View,
        backup: Backup,
        rule: Rule,
        learning_rate: float | Schedule,
        target_update_interval: int,
        tau: float = 1.0,
        max_grad_norm: float | None = None,
        adam_eps: float = 1e-8,
        optimizer: OptimizerName = "adam",
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        network: Any = as_network(q_network)  # of the view's kind, ValueNetwork or RecurrentValueNetwork
        self.q_network = network
        self.target_network = copy.deepcopy(network).requires_grad_(False).eval()  # its targets are not dropped out
        self.view, self.backup, self.rule = view, backup, rule
        self.learning_rate = learning_rate
        self.target_update_interval, self.tau = target_update_interval, tau
        self.max_grad_norm = max_grad_norm
        self.parameters = list(network.parameters())
        self._flat = flatten_parameters(network)
        self.flat_target = flatten_parameters(self.target_network)
        shapes = [p.shape for p in self.parameters]
        self.optimizer = FlatAdam(self._flat, shapes, eps=adam_eps, kind=optimizer, weight_decay=weight_decay)
        self.generator = torch.Generator(self._flat.device).manual_seed(seed)
        self.last_step = 0
        self.last_outcome: Outcome | None = None
        # Two places where something faster may be put: the gradient alone, and the whole step, (batch, learning rate) → outcome.
        self.gradient: DifferentiateBatch = self.autograd
        self.gradient_step: Callable[[Batch, float], Outcome] = self.eager_step

    @property
    def last_priorities(self) -> Tensor:
        """What prioritized replay should rank the last batch's items by, [B]."""
        return self._last_update().priorities

    @property
    def last_td_errors(self) -> Tensor:
        """|δ| of the last update as its rule reports it, [B] or [T, B]."""
        return self._last_update().td_errors

    def _last_update(self) -> Outcome:
        if self.last_outcome is None:
            raise RuntimeError("no update has been made yet")
        return self.last_outcome

    def current_learning_rate(self, global_step: int) -> float:
        return self.learning_rate(global_step) if callable(self.learning_rate) else self.learning_rate

    def align(self, batch: Batch, online: Any = None, target: Any = None) -> Aligned:
        """What the networks (its own unless given) say of a batch."""
        online, target = (self.q_network if online is None else online), (self.target_network if target is None else target)
        return self.view.align(batch, online, target, backup=self.backup, generator=self.generator)

    def td_loss(self, batch: Batch, online: Any = None, target: Any = None) -> tuple[TDLoss, Aligned]:
        """`align`, and how far what it gave is from the target."""
        aligned = self.align(batch, online, target)
        with torch.no_grad():
            goal = self.rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)
        return TDLoss(self.rule, aligned.chosen, goal, aligned.taus), aligned

    def evaluate_loss(self, batch: Batch, online: Any = None, target: Any = None) -> tuple[Tensor, TDLoss, Aligned]:
        """Σ weight·mask·loss / Σ mask of a batch, and what it was made of."""
        td, aligned = self.td_loss(batch, online, target)
        return reduce_loss(td.loss, aligned.mask, aligned.weights), td, aligned

    def autograd(self, batch: Batch, online: Any = None, target: Any = None, parameters: Sequence[Tensor] | None = None) -> Gradient:
        """The gradient by torch's autograd, of any network."""
        loss, td, aligned = self.evaluate_loss(batch, online, target)
        return Gradient(torch.autograd.grad(loss, parameters or self.parameters, allow_unused=True), td, aligned)

    def priorities(self, td: TDLoss, aligned: Aligned) -> Tensor:
        """What prioritized replay should rank the batch's items by, [B]."""
        return td.priority

    def metrics(self, td: TDLoss, aligned: Aligned) -> LazyMetrics:
        of = aligned.bootstrap, aligned.rewards, aligned.discounts
        return LazyMetrics(td, aligned.mask, aligned.weights, self.rule.extra_metrics, of)

    def eager_step(self, batch: Batch, learning_rate: float) -> Outcome:
        """One step of Adam along the batch's gradient."""
        grads, td, aligned = self.gradient(batch)
        self.optimizer.step(grads, learning_rate, self.max_grad_norm)
        return EagerOutcome(self, td, aligned)

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One gradient step; then the target network is synced if `global_step` crossed a multiple of `target_update_interval`."""
        outcome = self.last_outcome = self.gradient_step(batch, self.current_learning_rate(global_step))
        self.sync_target_if_due(global_step)
        return UpdateResult(outcome.metrics, 1)

    def sync_target_if_due(self, global_step: int) -> None:
        """The clock is at `global_step`: sync the target if a multiple of `target_update_interval` was crossed since the last call."""
        crossed = global_step // self.target_update_interval - self.last_step // self.target_update_interval
        self.last_step = global_step
        if crossed > 0:
            self.sync_target(crossed)

    @torch.no_grad()
    def sync_target(self, times: int = 1) -> None:
        """θ⁻ ← (1 − τ)θ⁻ + τθ, as often as given: (1 − τ)ᵏθ⁻ + (1 − (1 − τ)ᵏ)θ. τ = 1 copies.

        Buffers (a batch norm's statistics) are copied whatever τ is.
        """
        if self.tau == 1:
            self.flat_target.copy_(self._flat)
        else:
            self.flat_target.lerp_(self._flat, 1 - (1 - self.tau) ** times)
        for mine, theirs in zip(self.target_network.buffers(), self.q_network.buffers(), strict=True):
            mine.copy_(theirs)

    def state_dict(self) -> State:
        return {
            "q_network": dict(self.q_network.state_dict()),
            "target_network": dict(self.target_network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": generator_state(self.generator),
            "last_step": self.last_step,
        }

    def load_state_dict(self, state: State) -> None:
        for name in ("q_network", "target_network"):
            module: nn.Module = getattr(self, name)
            module.load_state_dict(state[name])  # copies in place: the parameters stay views of the flat tensor
        self.optimizer.load_state_dict(state["optimizer"])
        load_generator_state(self.generator, state["generator"])
        self.last_step = int(state["last_step"])
