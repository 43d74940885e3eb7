"""What the rest of the package asks of a network, and no more.

`Network` is what acting, evaluation, policies and checkpoints ask of any network. What a learner asks in addition depends on what it
learns from: `ValueNetwork` transitions, `RecurrentValueNetwork` sequences, `PolicyNetwork` rollouts. All are protocols: whatever has these
methods is a network, whichever class it is made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypeIs

from rl_training.models.distributions import Distribution
from rl_training.models.heads import NO_DRAWS, Draws, Head

if TYPE_CHECKING:
    from rl_training.types import Array

Role: TypeAlias = Literal["online", "target", "acting"]
"""What a forward pass is for: it decides how much randomness is drawn."""

CoreState: TypeAlias = tuple[Tensor, ...]
"""What a network carries from step to step, each part [L, B, H]: () for a feed-forward one, (h, c) for an LSTM, (h,) for a GRU."""


class Facts(NamedTuple):
    """What a network says of itself. Device, threads, precision and compilation are decided by it (runtime/devices.py)."""

    parameters: int  # how many numbers it learns
    recurrent: bool  # it carries a state from step to step
    convolutional: bool


def facts_of(module: nn.Module, *, recurrent: bool) -> Facts:
    """The facts of a network made of torch's layers."""
    convolutional = any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
    return Facts(sum(p.numel() for p in module.parameters()), recurrent, convolutional)


class Module(Protocol):
    """The part of `nn.Module` that is used of a network."""

    training: bool

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...

    def to(self, device: torch.device | str) -> Self: ...

    def train(self, mode: bool = True) -> Self: ...

    def eval(self) -> Self: ...


@runtime_checkable
class Network(Module, Protocol):
    """A network that acts. State is always threaded through: a feed-forward network carries ()."""

    @property
    def facts(self) -> Facts: ...

    def initial_state(self, batch_size: int) -> CoreState:
        """The state an episode starts from."""
        ...

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> CoreState:
        """The initial state where an episode starts ([B], true or 1), else unchanged."""
        ...

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: Role) -> Draws:
        """The randomness of one forward pass; `NO_DRAWS` where it has none."""
        ...

    @property
    def step(self) -> Callable[..., tuple[Tensor, CoreState]]:
        """One acting step, (obs, state, episode_starts, draws=NO_DRAWS): outputs [E, ...] that actions are chosen by (Q-values, or a
        policy's), and the state carried on. A network that `reads_previous` takes `previous` behind them."""
        ...

    def greedy(self, outputs: Array) -> Array:
        """The best actions by these outputs, as the environment takes them."""
        ...


@runtime_checkable
class _TransitionMethods(Network, Protocol):
    """What `is_value_network` asks for by name."""

    def forward(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        """[B, ...] → the head's outputs."""
        ...

    def q_values(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        """[B, ...] → [B, A]."""
        ...


class ValueNetwork(_TransitionMethods, Protocol):
    """A Q-network of transitions."""

    @property
    def head(self) -> Head: ...


@runtime_checkable
class _SequenceMethods(Network, Protocol):
    """What `is_recurrent_value_network` asks for by name."""

    def unroll_core(self, obs: Tensor, state: CoreState, episode_starts: Tensor | None = None) -> tuple[Tensor, CoreState]:
        """[T, B, ...] → what the head reads [T, B, F], and the state after the last step. `None` promises no start inside."""
        ...


class RecurrentValueNetwork(_SequenceMethods, Protocol):
    """A Q-network of sequences, in two parts: several passes of the head may share one unroll."""

    @property
    def head(self) -> Head: ...


def reads_previous(network: Network) -> bool:
    """Whether `step` and `unroll_core` take `previous`: the actions and rewards that led to the observations (recurrent/body.py)."""
    return bool(getattr(network, "previous_actions", 0))


# `isinstance` of a protocol looks at an object without asking it from Python 3.12 on, and so does not find a submodule such as the head.


def is_value_network(network: Network) -> TypeIs[ValueNetwork]:
    return isinstance(network, _TransitionMethods) and isinstance(getattr(network, "head", None), Head)


def is_recurrent_value_network(network: Network) -> TypeIs[RecurrentValueNetwork]:
    return isinstance(network, _SequenceMethods) and isinstance(getattr(network, "head", None), Head)


class PolicyNetwork(Network, Protocol):
    """Policy and value in one network."""

    distribution: Distribution

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """→ the policy's outputs [..., P] and values [...]."""
        ...


class RecurrentPolicyNetwork(Network, Protocol):
    """The same for sequences in which no episode starts."""

    distribution: Distribution

    def forward(self, obs: Tensor, initial_state: CoreState | None = None) -> tuple[Tensor, Tensor]:
        """[T, B, ...] → [T, B, P] and [T, B]."""
        ...
