"""The words every part of the package shares.

Shape legend, used in every docstring and shape comment:

    T  time          B  batch            E  environments
    A  actions       N  quantiles/atoms  H  recurrent hidden size   L  recurrent layers

`dones` always means *termination*. A truncated (time-limit) episode bootstraps from its true final observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# Strings, so that this module loads neither NumPy nor torch.
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Batch: TypeAlias = "dict[str, Tensor]"
Items: TypeAlias = "dict[str, np.ndarray[Any, np.dtype[Any]]]"
"""Finished items on their way into a replay, transitions or chunks of an episode: the fields by name, each with a leading axis of items."""
State: TypeAlias = dict[str, Any]
"""What `state_dict()` returns: nested dicts and lists of tensors, NumPy arrays, numbers, strings, booleans and None.
Tensors and arrays go to safetensors, the rest to JSON (arrays come back as tensors): nothing is ever pickled."""

ActivationName: TypeAlias = Literal["relu", "tanh", "elu", "gelu", "silu"]
OptimizerName: TypeAlias = Literal["adam", "adamw", "radam"]
LossName: TypeAlias = Literal["huber", "mse"]
PaddingName: TypeAlias = Literal["valid", "same"]
InitializationName: TypeAlias = Literal["torch", "xavier", "variance_scaling"]
LevelsName: TypeAlias = Literal["stratified", "independent"]

DEVICE_NAMES = r"auto|cpu|mps|cuda(:\d{1,3})?"
"""The pattern of a device's name, as configs, commands and functions take it."""


STATE_NAMES = ("initial_h", "initial_c")
"""The parts of a recurrent state in a batch of sequences, each [L, B, H]; a GRU has h alone."""


def stored_state(batch: Batch) -> tuple[Tensor, ...]:
    """The state that a batch's sequences begin from; () where it holds none."""
    return tuple(batch[name] for name in STATE_NAMES if name in batch)


class Previous(NamedTuple):
    """What led to an observation, for a network that reads it before its core: [...] each, tensors or arrays."""

    actions: Any  # int64; NO_ACTION at an episode's start
    rewards: Any  # float32; 0 there


NO_ACTION = -1


class Stateful(Protocol):
    """Everything that changes during training: a checkpoint is the dict of the parts' states."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> Any: ...


class Episode(NamedTuple):
    """One finished episode, with the reward the environment gave (before any normalisation)."""

    env_index: int
    episode_return: float
    length: int


class RawStep(NamedTuple):
    """What the environments gave, where normalisation changes it."""

    obs: Array
    final_obs: Array
    rewards: Array  # float32


class EnvStep(NamedTuple):
    """One vector step with one meaning, whatever the autoreset mode of the environments behind it."""

    obs: Array  # [E, ...] what to act on next: an episode's first observation where `is_first`
    final_obs: Array  # [E, ...] what the action led to: the true final observation at an episode's end
    rewards: Array  # [E] float32
    terminated: Array  # [E] bool: the task ended
    truncated: Array  # [E] bool: the time limit (never true together with `terminated`)
    is_first: Array  # [E] bool: `obs` begins an episode
    valid: Array  # [E] bool: False where this was a reset step, which is never stored or counted
    episodes: tuple[Episode, ...]  # those that ended in this step
    raw: RawStep | None = None  # obs, final_obs and rewards before normalisation, where there is any
    lost_life: Array | None = None  # [E] bool: a life was lost and the episode goes on, where somebody asked for it
    action_masks: Array | None = None  # [E, A] bool: what `obs` allows, where the environments say so
    next_action_masks: Array | None = None  # [E, A] bool: what `final_obs` allows; everything after a termination


@dataclass(slots=True, eq=False)  # slots: made and read at every step, in half of a NamedTuple's time
class Step:
    """One step of every environment on its way from the feed to n-step windows, chunks or a rollout: arrays [E, ...].

    The lower half rides along: None where nobody brings it, which costs nothing. Windows and chunks carry those that were declared when
    they were made (`carried`), and a replay stores those it declares (`extra`), each under its name here.
    """

    obs: Array  # what was acted on
    actions: Array
    rewards: Array
    next_obs: Array  # what the action led to: the true final observation at an episode's end
    terminated: Array  # bool
    truncated: Array  # bool
    episode_starts: Array | None = None  # bool: `obs` begins an episode
    valid: Array | None = None  # bool: False where no step was made (a reset step); None: all made one
    initial_state: Sequence[Any] = ()  # the network's before it saw `obs`: a tensor [layers, E, hidden] for each part

    lost_life: Array | None = None  # bool: nothing to bootstrap from here on, while episode, chunk and recurrent state go on
    action_masks: Array | None = None  # [E, A] bool: the actions that `obs` allowed
    next_action_masks: Array | None = None  # [E, A] bool: the actions that `next_obs` allows
    previous_actions: Array | None = None  # what led to `obs`; NO_ACTION and 0 where an episode starts
    previous_rewards: Array | None = None
    priorities: Array | None = None  # float: how surprising the actor found the step, for its item's first priority
    weights_version: Array | None = None  # int64: of the network that acted


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update reports. Metric values may stay tensors on the device: `float(x)` reads one."""

    metrics: Mapping[str, Tensor]
    num_gradient_steps: int
