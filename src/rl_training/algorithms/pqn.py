"""PQN (arXiv:2407.04811): Q-learning on fresh rollouts of many environments, without replay and without a target network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.adam import FlatAdam
from rl_training.algorithms.backups import allowed, take_action
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.rollouts import RolloutView, SequenceRolloutView, StepView, initial_state, previous_in
from rl_training.algorithms.rules import LazyMetrics, TDLoss, reduce_loss
from rl_training.algorithms.schedules import Schedule
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.models.flat import flatten_parameters
from rl_training.models.modes import evaluating
from rl_training.types import Array, Batch, OptimizerName, State, UpdateResult


class SquaredRule(ScalarRule):
    """½δ², as the paper has it."""

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        return 0.5 * torch.square(target - chosen)


class MinibatchGradient(NamedTuple):
    """∂loss/∂parameters in their order (None where the loss does not depend on one), and Q(s, a) as it was, [B] or [T, B]."""

    parameters: Sequence[Tensor | None]
    chosen: Tensor


class Learned(NamedTuple):
    """What one minibatch leaves to be reported: [B] or [T, B] each."""

    chosen: Tensor
    returns: Tensor
    mask: Tensor | None


DifferentiateReturns: TypeAlias = Callable[[Batch], MinibatchGradient]
LearnMinibatch: TypeAlias = Callable[[Batch, float], Learned]
"""(minibatch, learning rate) → what one gradient step on it leaves."""


class PQN:
    """Owns the network and its optimizer. `learn` takes a full rollout; `update` is one gradient step on one minibatch.

    R_t = r_t + γ[(1 − λ)·max_a Q(s_{t+1}, a) + λ·R_{t+1}]    (arXiv:2407.04811, eq. 6; Peng's Q(λ))

    computed once per rollout by the network that acted, since it has not changed. A termination ends the sum with r_t; a time limit and the
    rollout's end with r_t + γ·max_a Q of the observation that the action led to. Then epochs of minibatches of ½(R − Q(s, a))². What a
    target network is elsewhere, layer norm is here: it keeps bootstrapping from the online network from diverging.
    """

    model_key = "q_network"  # where the acting network stands in `state_dict()`
    view: type[RolloutView] = StepView

    def __init__(
        self,
        q_network: Any,
        learning_rate: float | Schedule,
        gamma: float,
        *,
        q_lambda: float = 0.65,
        update_epochs: int = 2,
        minibatch_size: int = 128,
        max_grad_norm: float | None = 10.0,
        adam_eps: float = 1e-8,
        optimizer: OptimizerName = "radam",
        weight_decay: float = 0.0,
    ) -> None:
        self.q_network = q_network
        self.learning_rate, self.gamma, self.q_lambda = learning_rate, gamma, q_lambda
        self.update_epochs, self.minibatch_size, self.max_grad_norm = update_epochs, minibatch_size, max_grad_norm
        self.rule = SquaredRule()
        self.parameters = list(q_network.parameters())
        self._flat = flatten_parameters(q_network)
        shapes = [p.shape for p in self.parameters]
        self.optimizer = FlatAdam(self._flat, shapes, eps=adam_eps, kind=optimizer, weight_decay=weight_decay)
        self.gradient: DifferentiateReturns = self.autograd  # two places where something faster may be put
        self.gradient_step: LearnMinibatch = self.eager_step

    def current_learning_rate(self, global_step: int) -> float:
        return self.learning_rate(global_step) if callable(self.learning_rate) else self.learning_rate

    # A rollout

    def learn(self, rollout: RolloutBuffer, *, global_step: int) -> UpdateResult:
        """`update_epochs` passes over the rollout's minibatches. global_step: where the rollout began; its schedules stand there."""
        if not rollout.num_transitions:  # nothing but reset steps
            return UpdateResult({}, 0)
        view, rate = self.view(rollout), self.current_learning_rate(global_step)
        items = rollout.items(returns=self.returns(rollout, view))
        done = [self.gradient_step(batch, rate) for batch in view.minibatches(items, self.minibatch_size, epochs=self.update_epochs)]
        return self._result(done)

    @torch.no_grad()
    def returns(self, rollout: RolloutBuffer, view: RolloutView) -> Array:
        """R, [T, E]. With V = max_a Q these are GAE's advantages and V: A_t + V_t = r_t + γV_{t+1} + γλ(R_{t+1} − V_{t+1})."""
        with evaluating(self.q_network):  # as it acted
            q_values = self.q_values(view.passed())
        mask = view.observed("action_masks", "next_action_masks") if "next_action_masks" in rollout.extra else None
        best = take_action(q_values, allowed(q_values, mask).argmax(-1))  # finite, where nothing is allowed after a termination
        values = view.here(best)
        advantages = rollout.advantages(values, view.ahead(best), gamma=self.gamma, gae_lambda=self.q_lambda)
        return advantages + values

    # A minibatch

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One gradient step. batch: `obs, actions, returns`: [B, ...], or [T, B, ...] with a `mask` and the state it begins from."""
        return self._result([self.gradient_step(batch, self.current_learning_rate(global_step))])

    def q_values(self, batch: Batch) -> Tensor:
        """Of a batch's `obs` [B, ...], [B, A]."""
        found: Tensor = self.q_network.q_values(batch["obs"])
        return found

    def autograd(self, batch: Batch) -> MinibatchGradient:
        """The gradient by torch's autograd, of any network."""
        with torch.enable_grad():
            chosen = take_action(self.q_values(batch), batch["actions"])
            loss = reduce_loss(self.rule.loss(chosen, batch["returns"]), batch.get("mask"), None)
        return MinibatchGradient(torch.autograd.grad(loss, self.parameters, allow_unused=True), chosen.detach())

    @torch.no_grad()
    def eager_step(self, batch: Batch, learning_rate: float | Tensor) -> Learned:
        grads, chosen = self.gradient(batch)
        self.optimizer.step(grads, learning_rate, self.max_grad_norm)
        return Learned(chosen, batch["returns"], batch.get("mask"))

    def _result(self, done: Sequence[Learned]) -> UpdateResult:
        chosen, returns = (
            torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in zip(*[each[:2] for each in done], strict=True)
        )
        masks = [each.mask.reshape(-1) for each in done if each.mask is not None]
        return UpdateResult(LazyMetrics(TDLoss(self.rule, chosen, returns), torch.cat(masks) if masks else None), len(done))

    def state_dict(self) -> State:
        return {"q_network": dict(self.q_network.state_dict()), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.q_network.load_state_dict(state["q_network"])  # copies in place: the parameters stay views of the flat tensor
        self.optimizer.load_state_dict(state["optimizer"])


class RecurrentPQN(PQN):
    """PQN on whole sequences of a network with memory, each unrolled from its true starting state (see SequenceRolloutView); that state
    stays as it was through the epochs, while the weights move. `minibatch_size` counts steps.

    The public code (purejaxql, pqn_rnn_gymnax.py) makes the targets anew in every minibatch, with the weights of now, gives up each
    rollout's last step to bootstrap from, and unrolls a few steps of the rollout before (`MEMORY_WINDOW`). Here they are made once, as
    without memory, and the last step bootstraps from the observation it led to.
    """

    view = SequenceRolloutView

    def q_values(self, batch: Batch) -> Tensor:
        """Of a batch's `obs` [T, B, ...], from the state it holds, or from zeros, [T, B, A]."""
        obs, previous = batch["obs"], dict(zip(("previous",), previous_in(batch), strict=False))
        core, _ = self.q_network.unroll_core(obs, initial_state(batch) or self.q_network.initial_state(obs.shape[1]), **previous)
        found: Tensor = self.q_network.head.q_values(self.q_network.head(core))
        return found
