"""A trained network as users ask it: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.envs.images import ImageForm
from rl_training.envs.masks import MaskError, allows_some, choice_sizes, read_masks
from rl_training.envs.spaces import first_action
from rl_training.errors import UserError
from rl_training.experiment.explain import shown
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import NO_DRAWS
from rl_training.models.network import CoreState, Network, reads_previous
from rl_training.runtime.behaviour import Behaviour, EpsilonGreedy, Sampling, allowed_outputs
from rl_training.types import NO_ACTION, Array, Previous


class Policy:
    """Actions of a network, one observation or a batch; the recurrent state goes in and comes out.

    Deterministic ones are the best or likeliest; others are ε-greedy for a Q-network and drawn from the policy for an actor-critic.
    """

    def __init__(self, network: Network, spaces: dict[str, Any], *, epsilon: float = 0.0, normalizer: Any = None, seed: int = 0) -> None:
        self.network, self.spaces, self.epsilon, self.normalizer = network.eval(), spaces, epsilon, normalizer
        self._device = next(network.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._behaviour: Behaviour
        if isinstance(network, ActorCritic):
            self._behaviour = Sampling(network.distribution, seed=seed)
        else:
            self._behaviour = EpsilonGreedy(lambda _: epsilon, num_actions=spaces["num_actions"], learning_starts=0, seed=seed)
        self.image = None if spaces.get("image") is None else ImageForm.from_described(spaces["image"])
        # what is given is as the environment gives it, several images oldest first; they become channels first here
        self.frame_stack: int = spaces.get("frame_stack", 1)
        stacked = () if self.frame_stack == 1 else (self.frame_stack,)
        self.obs_shape = tuple(spaces["obs_shape"]) if self.image is None else (*stacked, *self.image.shape)
        self.obs_dtype: str = spaces["obs_dtype"] if self.image is None else self.image.dtype
        self.first_action = first_action(spaces["action"])
        self.reads_previous = reads_previous(network)

    def _batch(self, obs: Any) -> tuple[Array, bool]:
        try:
            array = read_observation(obs, self.obs_shape, self.obs_dtype, batch=True)
        except UserError as error:
            raise UserError(f"an observation {error}") from None
        single = array.shape == self.obs_shape
        batch = array[None] if single else array
        if self.image is not None:
            batch = self.image.read(batch).reshape(len(batch), *self.spaces["obs_shape"])
        return (batch if self.normalizer is None else self.normalizer.normalize(batch)), single

    def reads(self, obs: Any) -> bool:
        """Whether `obs` has the shape of what the network reads, or of one of its images."""
        try:
            shape = np.shape(obs)
        except ValueError:  # lists of different lengths
            return False
        return shape == self.obs_shape or (self.frame_stack > 1 and shape == self.obs_shape[1:])

    def one_of_stack(self, obs: Any) -> Array | None:
        """The image that `obs` is, where the network reads several and `obs` is a single one."""
        return None if self.frame_stack == 1 else read_frame(obs, self.obs_shape[1:], self.obs_dtype)

    @torch.inference_mode()
    def outputs(
        self, obs: Any, state: CoreState | None = None, episode_start: Any = None, *, previous: Any = None
    ) -> tuple[Array, CoreState]:
        """What the network gives, [N] or [B, N]: Q-values, or the outputs of a policy; and the state carried on."""
        batch, single = self._batch(obs)
        outputs, state = self._step(batch, state, episode_start, deterministic=True, previous=previous)
        array: Array = outputs.cpu().numpy()
        return (array[0] if single else array), state

    def q_values(self, obs: Any, state: CoreState | None = None, episode_start: Any = None) -> tuple[Array, CoreState]:
        """Q-values [A] or [B, A], and the state carried on."""
        if isinstance(self.network, ActorCritic):
            raise UserError("an actor-critic has no Q-values: ask for its `outputs`")
        return self.outputs(obs, state, episode_start)

    @torch.inference_mode()
    def value(self, obs: Any, state: CoreState | None = None, episode_start: Any = None, *, previous: Any = None) -> Array:
        """What an actor-critic's critic says of the state, [] or [B]."""
        if not isinstance(self.network, ActorCritic):
            raise UserError("a Q-network has no value beside its Q-values: ask for `q_values`")
        batch, single = self._batch(obs)
        starts = _starts(episode_start, len(batch))
        led = self._led(previous, starts | (state is None or not len(state)))
        inputs, first = torch.from_numpy(batch).to(self._device), torch.from_numpy(starts).to(self._device)
        value: Array = self.network.step_with_value(inputs, self._carried(state, len(batch)), first, *led)[1].cpu().numpy()
        return value[0] if single else value

    def answer(
        self,
        obs: Any,
        state: CoreState | None = None,
        episode_start: Any = None,
        action_mask: Any = None,
        *,
        previous: Any = None,
    ) -> tuple[dict[str, Any], CoreState]:
        """The greedy action for one observation with the outputs it was chosen by, as JSON can hold them, and the state carried on."""
        obs, masks = read_observation(obs, self.obs_shape, self.obs_dtype), read_action_masks(action_mask, self.spaces["action"], ())
        outputs, state = self.outputs(obs, state, episode_start, previous=previous)
        among = allowed_outputs(outputs[None], masks)
        action = (self.network.greedy(among)[0] + self.first_action).tolist()
        if isinstance(self.network, ActorCritic):
            answer = {"action": action, **self.network.distribution.describe(among[0])}
        else:
            answer = {"action": action, "q_values": outputs.tolist()}
        if not all(np.isfinite(value).all() for value in answer.values()):
            raise UserError("has no answer: what the network gives for it is not finite (its training diverged)")
        return answer, state

    @torch.inference_mode()
    def predict(
        self,
        obs: Any,
        state: CoreState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_masks: Any = None,
        previous: Any = None,
    ) -> tuple[Any, CoreState]:
        """Actions as the environment takes them (one for one observation, [B, ...] for a batch; a Discrete one is an int) and the state to
        pass in next time: () for a feed-forward network. action_masks: [A] or [B, A], true where an action may be chosen (None: all).
        previous: (actions, rewards) that led to the observations, as the environment has them, for a row that reads them
        (`previous_action_reward`); where an episode starts they do not count."""
        batch, single = self._batch(obs)
        try:
            masks = read_action_masks(action_masks, self.spaces["action"], () if single else (len(batch),))
        except UserError as error:
            raise UserError(f"an observation {error}") from None
        outputs, state = self._step(batch, state, episode_start, deterministic, previous)
        if deterministic:
            actions = self.network.greedy(allowed_outputs(outputs.cpu().numpy(), masks))
        else:
            self._behaviour.begin(0, len(batch), masks)
            actions = self._behaviour.to_env(self._behaviour.choose(outputs.cpu().numpy(), masks))
        actions = actions + self.first_action
        one = int(actions[0]) if actions.ndim == 1 else actions[0]
        return (one if single else actions), state

    def _step(
        self, batch: Array, state: CoreState | None, episode_start: Any, deterministic: bool, previous: Any = None
    ) -> tuple[torch.Tensor, CoreState]:
        starts = _starts(episode_start, len(batch))
        led = self._led(previous, starts | (state is None or not len(state)))
        state = self._carried(state, len(batch))
        obs, first = torch.from_numpy(batch).to(self._device), torch.from_numpy(starts).to(self._device)
        draws = NO_DRAWS if deterministic else self.network.draw(self._generator, (len(batch),), "acting")
        return self.network.step(obs, state, first, draws, *led)

    def _led(self, given: Any, starts: Array) -> tuple[Previous, ...]:
        """What led to the observations, as the network takes it; () for one that does not read it."""
        if not self.reads_previous:
            if given is not None:
                raise UserError("`previous` is for a row with previous_action_reward, and this one does not read it")
            return ()
        if given is None:
            if not starts.all():
                raise UserError("this row reads what led to an observation: give previous=(actions, rewards) beside the state")
            given = np.zeros(len(starts), np.int64), np.zeros(len(starts))
        try:
            actions, rewards = given
            actions, rewards = (np.broadcast_to(part, starts.shape) for part in (np.asarray(actions, "i8"), np.asarray(rewards, "f4")))
        except (TypeError, ValueError):
            raise UserError(f"previous must be (actions, rewards) for each of {len(starts)} observations, got {shown(given)}") from None
        counted, number = actions - self.first_action, self.spaces["num_actions"]
        if not (starts | ((counted >= 0) & (counted < number))).all():  # one below the first would read as none at all
            last = self.first_action + number - 1
            raise UserError(f"previous must have actions from {self.first_action} to {last}, got {shown(given)}")
        if not (starts | np.isfinite(rewards)).all():
            raise UserError(f"previous must have finite rewards, got {shown(given)}")
        led = np.where(starts, NO_ACTION, counted), np.where(starts, np.float32(0), rewards)
        return (Previous(*(torch.from_numpy(part).to(self._device) for part in led)),)

    def _carried(self, state: CoreState | None, batch_size: int) -> CoreState:
        """The state to go on from, which must be one that `predict` gave for as many observations."""
        fresh = self.network.initial_state(batch_size)
        if state is None or (not len(fresh) and not len(state)):
            return fresh
        given, wanted = ([tuple(getattr(part, "shape", ())) for part in parts] for parts in (state, fresh))
        if given != wanted:
            raise UserError(f"the state must be one that predict gave for {batch_size} observations, of shapes {wanted}, got {given}")
        return state


def _starts(episode_start: Any, batch_size: int) -> Array:
    starts = np.zeros(batch_size, bool)
    try:
        starts |= np.asarray(False if episode_start is None else episode_start, bool)
    except (TypeError, ValueError):
        given = shown(episode_start)
        raise UserError(f"episode_start must be true or false for each of {batch_size} observations, got {given}") from None
    return starts


def read_action_masks(given: Any, action: Mapping[str, Any], shape: tuple[int, ...]) -> Array | None:
    """[B, A] of a mask for each observation; shape: () for a single one, else (B,)."""
    if given is None:
        return None
    try:
        sizes = choice_sizes(action)
        masks = read_masks(given, sizes, shape)
        if not allows_some(masks, sizes).all():
            raise MaskError("an action mask that allows no action")
    except MaskError as error:
        raise UserError(f"has {error}") from None
    return masks.reshape(-1, masks.shape[-1])


def read_frame(value: Any, shape: tuple[int, ...], dtype: str) -> Array | None:
    """One image, where `value` is one."""
    try:
        return read_observation(value, shape, dtype)
    except UserError:
        return None


def read_observation(value: Any, shape: tuple[int, ...], dtype: str, *, batch: bool = False) -> Array:
    """One observation (with `batch`, or several) from what anybody gave: shape, finiteness and range are checked, nothing is cut off."""
    ready = isinstance(value, np.ndarray) and value.dtype == dtype
    several = " (or a batch of them)" if batch else ""
    try:
        array = value if ready else np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"must be a list of numbers of shape {shape}{several}, got {shown(value)}") from None
    if array.shape != shape and not (batch and array.shape[1:] == shape):
        raise UserError(f"must have shape {shape}{several}, got {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        read: Array = array if ready else array.astype(dtype)
    if not np.isfinite(array).all() or not np.isfinite(read).all():
        raise UserError(f"must be finite numbers, got {shown(value)}")
    if not np.issubdtype(read.dtype, np.floating) and not np.array_equal(read, array):
        raise UserError(f"must be whole numbers that {dtype} can hold, got {shown(value)}")
    return read
