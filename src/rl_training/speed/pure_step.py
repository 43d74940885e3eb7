"""One gradient step of a QLearner as a pure function of tensors: what a compiler can take (ahead_of_time.py).

It is the learner's own code, view, backup, rule and networks, run on the tensors it is given instead of those the learner owns. What eager
code leaves out because nobody reads it (metrics, priorities) is part of the function: inside one compiled graph it is nearly free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.adam import Coefficients, moved
from rl_training.algorithms.q_learner import Outcome, QLearner
from rl_training.algorithms.rules import LazyMetrics
from rl_training.models.heads import NO_DRAWS, Draws
from rl_training.speed.numba_rules import traced_rule
from rl_training.speed.parameters import parameters_from, split_like
from rl_training.types import Batch


class PureStep:
    """`step(*step.inputs(batch, learning_rate))` does what one gradient step of `learner` does: the flat parameters and both moments
    are written in place, once and last, and `[M]` metrics, TD errors and priorities come out.

    Everything else is an input, the randomness too: noise and quantile levels are drawn from the learner's generator as eager code
    draws them, so that both walk the same stream. Made from an example batch, whose fields and shapes it keeps; `unpack` makes of it
    what the learner reads, inside the function.
    """

    NUM_STATE = 4  # the first inputs, which are the learner's own: θ, θ⁻ and both moments

    def __init__(self, learner: QLearner, batch: Batch, unpack: Callable[[Batch], Batch] = dict) -> None:
        self._learner, self._unpack = learner, unpack
        self.networks = (learner.q_network, learner.target_network)
        self._fields = tuple(sorted(batch))
        # Only what really draws: most networks do not.
        self._asks = [(network, shape, role) for network, shape, role in _draws_of(learner, unpack(batch)) if draws(network)]
        self.metric_names = tuple(LazyMetrics.names(learner.rule))
        self._scalars = torch.zeros(len(Coefficients._fields))
        self._host_scalars = self._scalars.numpy()
        optimizer = learner.optimizer
        self._host_steps = optimizer.steps.numpy()  # the same memory
        self._state = (optimizer.parameters, learner.flat_target, optimizer.mean, optimizer.variance, self._scalars)
        self._layout = [(name, x.shape, x.stride(), x.dtype) for name, x in sorted(batch.items())]

    def takes(self, batch: Batch) -> bool:
        """Whether the batch is laid out in memory as the example was: a compiled graph reads it by that layout, unchecked."""
        if len(batch) != len(self._layout):
            return False
        for name, shape, stride, dtype in self._layout:
            x = batch.get(name)
            if x is None or x.shape != shape or x.stride() != stride or x.dtype is not dtype:
                return False
        return True

    def inputs(self, batch: Batch, learning_rate: float) -> list[Tensor]:
        """The function's arguments for the optimizer's next step. Reads the count of steps, so advance it after the call."""
        self._host_scalars[:] = self._learner.optimizer.coefficients(int(self._host_steps) + 1, learning_rate)
        drawn: list[Tensor] = []
        for network, shape, role in self._asks:
            drawn += [x for x in network.draw(self._learner.generator, shape, role) if x is not None]
        return [*self._state, *(batch[name] for name in self._fields), *drawn]

    @torch.no_grad()
    def __call__(self, flat: Tensor, flat_target: Tensor, mean: Tensor, variance: Tensor, scalars: Tensor, *rest: Tensor) -> Any:
        learner = self._learner
        batch = self._unpack(dict(zip(self._fields, rest, strict=False)))
        given = dict(zip([network for network, _, _ in self._asks], self._given_draws(rest[len(self._fields) :]), strict=True))
        # Leaves of their own: where there is no gradient by hand, autograd differentiates with respect to these.
        parameters = [x.detach().requires_grad_() for x in split_like(learner.q_network, flat)]
        targets = split_like(learner.target_network, flat_target)
        with (
            torch_alone(learner),
            parameters_from(learner.q_network, parameters),
            parameters_from(learner.target_network, targets),
            torch.enable_grad(),
        ):
            online, target = (_WithDraws(x, given.get(x, NO_DRAWS)) for x in (learner.q_network, learner.target_network))
            grads, td, aligned = learner.gradient(batch, online, target, parameters)
            with torch.no_grad():
                metrics = learner.metrics(td, aligned)
                report = torch.stack([metrics[name] for name in self.metric_names])
                errors, priorities = td.td_error, learner.priorities(td, aligned)
        grad = torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, parameters, strict=True)])
        if learner.max_grad_norm is not None:
            grad = grad * (learner.max_grad_norm / (torch.linalg.vector_norm(grad) + 1e-6)).clamp(max=1.0)
        optimizer = learner.optimizer
        new = moved(flat, optimizer.decayed(grad, flat), mean, variance, Coefficients(*scalars), optimizer.betas)
        for held, after in zip((flat, mean, variance), new, strict=True):
            held.copy_(after)
        return report, errors, priorities

    def _given_draws(self, tensors: Sequence[Tensor]) -> Iterator[Draws]:
        left = iter(tensors)
        for network, _, _ in self._asks:
            head = network.head
            yield Draws(next(left) if head.noise_dim else None, next(left) if head.draws_taus else None)

    def apply(self, call: Any, batch: Batch, learning_rate: float) -> Outcome:
        """One gradient step through `call`, this function or a compiled form of it that takes the inputs as one list."""
        report, errors, priorities = call(self.inputs(batch, learning_rate))
        self._host_steps += 1
        return Reported(self.metric_names, report, errors, priorities)


@contextmanager
def torch_alone(learner: QLearner) -> Iterator[None]:
    """Inside, the learner's rule is made of torch's operations alone: a compiler that traces them can take nothing else."""
    before, learner.rule = learner.rule, traced_rule(learner.rule)
    try:
        yield
    finally:
        learner.rule = before


class Reported:
    """What a compiled step gave: everything is there already."""

    def __init__(self, names: Sequence[str], report: Tensor, td_errors: Tensor, priorities: Tensor) -> None:
        self.metrics: Mapping[str, Tensor] = _Report(names, report)
        self.td_errors, self.priorities = td_errors, priorities


class _Report(Mapping[str, Tensor]):
    """The numbers of one tensor [M] by name."""

    def __init__(self, names: Sequence[str], values: Tensor) -> None:
        self._names, self._values = names, values

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._values[self._names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _WithDraws:
    """A network whose randomness has been drawn already."""

    def __init__(self, network: Any, draws: Draws) -> None:
        self._network, self._given = network, draws

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: str) -> Draws:
        return self._given

    def __call__(self, *args: Any) -> Any:
        return self._network(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class _Recording(_WithDraws):
    """Notes what the view asks for, and gives it."""

    def __init__(self, network: Any, asked: list[tuple[Any, Sequence[int], Any]]) -> None:
        super().__init__(network, NO_DRAWS)
        self._asked = asked

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: Any) -> Draws:
        self._asked.append((self._network, tuple(batch_shape), role))
        draws: Draws = self._network.draw(generator, batch_shape, role)
        return draws


def _draws_of(learner: QLearner, batch: Batch) -> list[tuple[Any, Sequence[int], Any]]:
    """(network, shape, role) of everything one step draws, in its order, each network once; the generator is left as it was."""
    asked: list[tuple[Any, Sequence[int], Any]] = []
    before = learner.generator.get_state()
    with torch.no_grad():
        learner.td_loss(batch, _Recording(learner.q_network, asked), _Recording(learner.target_network, asked))
    learner.generator.set_state(before)
    if len(asked) != len({id(network) for network, _, _ in asked}):
        raise RuntimeError("a view that draws for one network twice in a step cannot be compiled")
    return asked


def draws(network: Any) -> bool:
    """Whether a forward pass of this network is random."""
    head = getattr(network, "head", None)  # an actor-critic has heads, and none of them draws
    return head is not None and bool(head.noise_dim or head.draws_taus)
