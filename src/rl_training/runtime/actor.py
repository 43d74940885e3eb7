"""The acting side: a network steps environments, and what happened goes to the replay or rollout.

Recurrent state is always threaded through; a feed-forward network carries ().
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from rl_training.data.frames import FrameNumbers
from rl_training.data.generators import generator_state, load_generator_state
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sequences import joined
from rl_training.envs.vector import VectorEnvs
from rl_training.models.modes import evaluating, has_modes
from rl_training.models.network import CoreState, Network
from rl_training.runtime.behaviour import Behaviour
from rl_training.runtime.previous import PreviousSteps
from rl_training.types import Array, EnvStep, Items, State, Step

NO_STARTS = torch.zeros(0, dtype=torch.bool)  # a feed-forward network has nothing to reset


class Feed(Protocol):
    """Where steps go: by way of finished items into a replay, or as they are into a rollout."""

    raw: bool
    """Whether it takes steps as the environments gave them, before any normalisation; else as they were acted on."""

    def push(self, step: Step) -> None: ...

    def flush(self) -> None:
        """What was pushed must be in the buffer now: it is about to be learned from or saved."""
        ...

    def drop(self, env_indices: Array) -> None:
        """End what is open for environments that could not be restored, or forget it. Called when the buffer has been restored."""
        ...

    @property
    def num_open(self) -> int:
        """Steps that are in nothing finished yet."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> Any: ...


class ItemMaker(Protocol):
    """Makes finished items of steps: n-step transitions (data/n_step.py) or chunks of episodes (data/sequences.py)."""

    def push(self, step: Step, /) -> Items: ...

    def drop(self, env_indices: Array, /) -> Items | None:
        """These episodes cannot go on. Returns what can be made of what they left."""
        ...

    @property
    def num_open(self) -> int: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class TakesItems(Protocol):
    """A replay, or what stands in its place where items are sent elsewhere."""

    def add_items(self, items: Items) -> None: ...


class ReplayFeed:
    """Steps to items, and the items into a replay: those of several steps at once where nobody reads it between them."""

    MOST = 64  # steps kept back
    raw = True

    def __init__(self, maker: ItemMaker, replay: TakesItems, refresh: Callable[[], None] | None = None) -> None:
        """refresh: called whenever the replay is about to be learned from (see `NormalizedReplay`)."""
        self.maker, self._replay, self._refresh = maker, replay, refresh
        self._push = maker.push  # looked up once: it is called every step
        self._kept: list[Items] = []  # arrays that nobody writes to again (see envs/vector.py)

    def push(self, step: Step) -> None:
        items = self._push(step)
        if items and len(items["rewards"]):
            self._kept.append(items)
            if len(self._kept) >= self.MOST:
                self.flush()

    def flush(self) -> None:
        if self._kept:
            self._replay.add_items(joined(self._kept))
            self._kept.clear()
        if self._refresh is not None:
            self._refresh()

    def drop(self, env_indices: Array) -> None:
        items = self.maker.drop(env_indices)
        if items:
            self._replay.add_items(items)

    @property
    def num_open(self) -> int:
        return self.maker.num_open

    def state_dict(self) -> State:
        return self.maker.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.maker.load_state_dict(state)


class FramedFeed(ReplayFeed):
    """A `ReplayFeed` whose items name observations by the ids of their frames, and bring the frames that are new."""

    MOST_FRAMES = 512  # kept back

    def __init__(self, maker: ItemMaker, replay: TakesItems, numbers: FrameNumbers, refresh: Callable[[], None] | None = None) -> None:
        super().__init__(maker, replay, refresh)
        self._numbers = numbers
        self._push = lambda step: maker.push(numbers.number(step))

    def push(self, step: Step) -> None:
        super().push(step)
        if self._numbers.num_new >= self.MOST_FRAMES:
            self.flush()

    def flush(self) -> None:
        frames = self._numbers.take()
        if frames:
            self._replay.add_items({**joined(self._kept), **frames})
            self._kept.clear()
        super().flush()

    def drop(self, env_indices: Array) -> None:
        self._numbers.drop(env_indices)
        super().drop(env_indices)

    def state_dict(self) -> State:
        return {"items": super().state_dict(), "frames": self._numbers.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state["items"])
        self._numbers.load_state_dict(state["frames"])


class RolloutFeed:
    """Steps as they are; what is open is the rollout's own state."""

    raw = False
    num_open = 0

    def __init__(self, rollout: RolloutBuffer) -> None:
        self._rollout = rollout
        self.push = rollout.add

    def flush(self) -> None:
        pass

    def drop(self, env_indices: Array) -> None:
        self._rollout.end_episodes(env_indices)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


Forward: TypeAlias = Callable[..., tuple[Array, CoreState]]
"""(obs, state, is_first) → what `network.step` says [E, ...], and the state carried on. A network that reads what led to its observations
is given that too, as `PreviousSteps`."""


class Actor:
    """Steps the environments with the network's actions, as `behaviour` chooses them, and feeds the replay."""

    def __init__(self, envs: VectorEnvs, network: Network, feed: Feed, *, behaviour: Behaviour, device: torch.device, seed: int) -> None:
        self.envs, self.network, self.feed, self.behaviour = envs, network, feed, behaviour
        self._device, self._on_cpu = device, device.type == "cpu"
        self.learns_from = behaviour.learning_starts  # the environment step from which there is enough to learn from
        self._generator = torch.Generator(device).manual_seed(seed)
        self._obs = envs.begin()
        self._masks = envs.action_masks  # what `_obs` allows; None: everything
        self._raw = envs.raw_obs if feed.raw and envs.normalizes else None  # where the feed takes another form than is acted on
        self._is_first = np.ones(envs.num_envs, bool)
        self._state: CoreState = network.initial_state(envs.num_envs)
        self._needs_forward = bool(self._state)
        self._previous = PreviousSteps.of(network, envs.num_envs)
        self._forward: Forward = self._eager_forward
        # Acting drops nothing out, as evaluation; a network without modes is not asked at every step.
        self._asking: Callable[[Any], AbstractContextManager[Any]] = evaluating if has_modes(network) else nullcontext

    def use_forward(self, make: Callable[[Network, Array, CoreState, torch.Generator], Forward | None]) -> None:
        """Run the network in another way: made from the network, an example of observations and state, and the generator.

        Where nothing is made, it runs as before.
        """
        self._forward = make(self.network, self._obs, self._state, self._generator) or self._forward

    @property
    def most_steps(self) -> int:
        return self.envs.num_envs

    @property
    def num_open(self) -> int:
        return self.feed.num_open

    @property
    def resume_note(self) -> str:
        return self.envs.resume_note

    def flush(self) -> None:
        self.feed.flush()

    def close(self) -> None:
        self.envs.close()

    def refill_from(self, env_steps: int) -> None:
        """The replay is empty at this point of the run: collect as much as at the beginning before learning again."""
        self.learns_from = env_steps + self.behaviour.learning_starts

    def _act(self, env_steps: int) -> Array:
        actions = self.behaviour.begin(env_steps, self.envs.num_envs, self._masks)
        if actions is not None and not self._needs_forward:
            return actions
        if self._previous is None:
            outputs, self._state = self._forward(self._obs, self._state, self._is_first)
        else:
            outputs, self._state = self._forward(self._obs, self._state, self._is_first, self._previous)
        return self.behaviour.choose(outputs, self._masks)

    def _eager_forward(
        self, obs: Array, state: CoreState, is_first: Array, previous: PreviousSteps | None = None
    ) -> tuple[Array, CoreState]:
        with torch.inference_mode(), self._asking(self.network):
            seen = torch.from_numpy(obs)
            if not self._on_cpu:
                seen = seen.to(self._device)
            draws = self.network.draw(self._generator, is_first.shape, "acting")
            starts = torch.tensor(is_first, device=self._device) if self._needs_forward else NO_STARTS
            led = () if previous is None else (previous.tensors(self._device),)
            outputs, state = self.network.step(seen, state, starts, draws, *led)
            array: Array = (outputs if self._on_cpu else outputs.cpu()).numpy()
        return array, state

    def step(self, env_steps: int, meanwhile: Callable[[], None] | None = None) -> EnvStep:
        """One vector step at the clock's `env_steps`. `meanwhile` is called when the actions are chosen, before the environments step."""
        state = self._state
        if state and self._is_first.any():  # what the network held before it saw obs: zeros at an episode's start
            state = self.network.reset_state(state, torch.tensor(self._is_first))
        actions = self._act(env_steps)
        if meanwhile is not None:
            meanwhile()
        step = self.envs.step(self.behaviour.to_env(actions))
        obs, rewards, next_obs = self._obs, step.rewards, step.final_obs
        if self._raw is not None and step.raw is not None:
            obs, rewards, next_obs, self._raw = self._raw, step.raw.rewards, step.raw.final_obs, step.raw.obs
        valid = None if step.valid is self.envs.all_valid else step.valid
        made = Step(obs, actions, rewards, next_obs, step.terminated, step.truncated, self._is_first, valid, state)
        made.lost_life = step.lost_life
        if self._masks is not None:
            made.action_masks, made.next_action_masks, self._masks = self._masks, step.next_action_masks, step.action_masks
        if self._previous is not None:
            made.previous_actions, made.previous_rewards = self._previous.actions, self._previous.rewards
            self._previous.step(actions, step)
        self.feed.push(made)
        self._obs, self._is_first = step.obs, step.is_first
        return step

    def state_dict(self) -> State:
        self.feed.flush()  # the replay is saved after us
        return {
            "envs": self.envs.state_dict(),
            "feed": self.feed.state_dict(),
            "core": [tensor.cpu() for tensor in self._state],
            "is_first": self._is_first,
            "behaviour": self.behaviour.state_dict(),
            "generator": generator_state(self._generator),
            "learns_from": self.learns_from,
            **({} if self._previous is None else {"previous": {"actions": self._previous.actions, "rewards": self._previous.rewards}}),
        }

    def load_state_dict(self, state: State) -> None:
        self.feed.load_state_dict(state["feed"])
        self._state = tuple(tensor.to(self._device) for tensor in state["core"])
        self._is_first = np.asarray(state["is_first"]).astype(bool)
        self.behaviour.load_state_dict(state["behaviour"])
        load_generator_state(self._generator, state["generator"])
        self.learns_from = int(state["learns_from"])
        if self._previous is not None:
            self._previous.actions = np.asarray(state["previous"]["actions"], np.int64)
            self._previous.rewards = np.asarray(state["previous"]["rewards"], np.float32)
        restored = self.envs.load_state_dict(state["envs"])
        self._obs, self._masks = restored.obs, self.envs.action_masks
        if self._raw is not None:
            self._raw = self.envs.raw_obs
        lost = ~restored.restored
        if lost.any():
            self.feed.drop(np.flatnonzero(lost))
            self._is_first = self._is_first | lost
            if self._previous is not None:
                self._previous.forget(lost)
