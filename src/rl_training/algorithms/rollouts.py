"""A rollout as a network is run on it: step by step, or as the sequences of its episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.models.network import CoreState
from rl_training.types import STATE_NAMES, Array, Batch, Previous, stored_state


class RolloutView(Protocol):
    """What a network has to see of a full rollout [T, E], in one pass: every step has its own outputs then, and those it bootstraps
    from."""

    def __init__(self, rollout: RolloutBuffer) -> None: ...

    def observed(self, name: str = "obs", following: str = "next_obs") -> Tensor:
        """A field of the steps, and its follower where an action led to what no other step saw."""
        ...

    def passed(self) -> Batch:
        """What a pass over all of it takes, named as in a minibatch: `obs`, and for a network with memory the state it begins from, and
        what led to the observations where the rollout holds it."""
        ...

    def taken(self, outputs: Tensor) -> Tensor:
        """Of the outputs for `observed`, those where an action was taken, in the order of `items`."""
        ...

    def items(self) -> Batch:
        """The steps' own fields, laid out as `taken`."""
        ...

    def here(self, values: Tensor) -> Array:
        """One value per `observed` or per `taken` → that of each step, [T, E]."""
        ...

    def ahead(self, values: Tensor) -> Array:
        """One value per `observed` → that of the observation each action really led to, [T, E]; anything after a termination."""
        ...

    def minibatches(self, items: Batch, size: int, *, epochs: int) -> Iterator[Batch]:
        """What to learn from: each epoch holds every valid step once."""
        ...


class StepView:
    """For a feed-forward network: the steps [T·E], and behind them the observations at a time limit and at the rollout's end."""

    def __init__(self, rollout: RolloutBuffer) -> None:
        self._rollout, self._shape = rollout, rollout.field("valid").shape
        self._count, self._rows = int(np.prod(self._shape)), rollout.bootstrap_rows()

    def observed(self, name: str = "obs", following: str = "next_obs") -> Tensor:
        then = self._rollout.field(following)
        ends = torch.from_numpy(then.reshape(self._count, *then.shape[2:])[self._rows])
        return torch.cat([self._rollout.sent(name), ends.to(self._rollout.device)])

    def passed(self) -> Batch:
        return {"obs": self.observed()}

    def taken(self, outputs: Tensor) -> Tensor:
        return outputs[: self._count]

    def items(self) -> Batch:
        return self._rollout.items()

    def here(self, values: Tensor) -> Array:
        found: Array = values[: self._count].cpu().numpy()
        return found.reshape(self._shape)

    def ahead(self, values: Tensor) -> Array:
        found = self.here(values)
        following = np.zeros_like(found)
        following[:-1] = found[1:]
        following.reshape(-1)[self._rows] = values[self._count :].cpu().numpy()
        return following

    def minibatches(self, items: Batch, size: int, *, epochs: int) -> Iterator[Batch]:
        return self._rollout.minibatches(items, size, epochs=epochs)


class SequenceRolloutView:
    """For a network with memory: one unroll over all sequences, each one step longer than its actions. The last observation it led to
    closes it, so that the value bootstrapped from comes from the carried state too.

    A sequence is what one episode did within a rollout, so nothing starts inside it. It begins from zeros with its episode, or from the
    state the network carried into the rollout. A minibatch takes whole sequences until its share of the steps is reached.
    """

    def __init__(self, rollout: RolloutBuffer) -> None:
        self._rollout, self._sequences, self._shape = rollout, rollout.sequences(), rollout.field("valid").shape
        self._real = self._sequences.mask > 0

    def observed(self, name: str = "obs", following: str = "next_obs") -> Tensor:
        fields = (self._rollout.field(each) for each in (name, following))
        now, then = (field.reshape(-1, *field.shape[2:]) for field in fields)
        steps = self._sequences.steps
        unrolled = now[np.concatenate([steps, steps[-1:]])]  # [L + 1, S, ...]
        unrolled[self._real.sum(0), np.arange(steps.shape[1])] = then[steps[-1]]
        return torch.from_numpy(unrolled).to(self._rollout.device)

    def passed(self) -> Batch:
        states = self._rollout.initial_states(self._sequences)
        batch = {"obs": self.observed(), **dict(zip(STATE_NAMES, states, strict=False))}
        if "previous_actions" in self._rollout.extra:
            batch |= {f"previous_{name}": self.observed(f"previous_{name}", name) for name in ("actions", "rewards")}
        return batch

    def taken(self, outputs: Tensor) -> Tensor:
        return outputs[:-1]

    def items(self) -> Batch:
        steps = self._sequences.steps
        index = torch.from_numpy(steps.reshape(-1)).to(self._rollout.device)
        return {name: x.index_select(0, index).view(*steps.shape, *x.shape[1:]) for name, x in self._rollout.items().items()}

    def here(self, values: Tensor) -> Array:
        return self._scattered(values[: len(self._real)])

    def ahead(self, values: Tensor) -> Array:
        return self._scattered(values[1:])

    def _scattered(self, values: Tensor) -> Array:
        """[L, S] → [T, E]."""
        host = values.cpu().numpy()
        found = np.zeros(self._shape, host.dtype)
        found.reshape(-1)[self._sequences.steps[self._real]] = host[self._real]
        return found

    def minibatches(self, items: Batch, size: int, *, epochs: int) -> Iterator[Batch]:
        return self._rollout.sequence_minibatches(
            items, self._sequences, self._rollout.initial_states(self._sequences), size, epochs=epochs
        )


def previous_in(batch: Batch) -> tuple[Previous, ...]:
    """What led to the observations of a minibatch; () where it does not say."""
    return (Previous(batch["previous_actions"], batch["previous_rewards"]),) if "previous_actions" in batch else ()


def initial_state(batch: Batch) -> CoreState | None:
    """The state its sequences begin from; None: zeros."""
    return stored_state(batch) or None
