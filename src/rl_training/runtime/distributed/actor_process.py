"""What runs elsewhere: the `Actor` of a local run, with its own environments and a copy of the network."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from rl_training.data.framed_ring import NAMED
from rl_training.data.frames import FRAMES, STACKS, FrameNumbers, FrameStore
from rl_training.data.storage import Field
from rl_training.envs.vector import VectorEnvs
from rl_training.models.flat import flatten_parameters
from rl_training.models.network import Network
from rl_training.runtime.accelerate import accelerate_acting
from rl_training.runtime.actor import Actor, FramedFeed, ItemMaker, ReplayFeed
from rl_training.runtime.behaviour import Behaviour
from rl_training.runtime.distributed.blocks import Facts, Order, Outbox, joined_steps
from rl_training.runtime.distributed.first_priorities import FirstPriorities
from rl_training.runtime.distributed.weights import take_over
from rl_training.types import Items, State

CPU = torch.device("cpu")


class FramePlan(NamedTuple):
    """Frames are sent once, by their ids. reach: from an actor's newest one back, those that the items of a block may name."""

    obs: Field  # a whole, stacked observation
    stack: int
    reach: int


@dataclass(frozen=True)
class ActorPlan:
    """What an actor is made of, beside its network: nothing but what can be sent."""

    make_envs: Callable[[], VectorEnvs]
    maker: ItemMaker
    behaviour: Behaviour
    seed: int
    threads: int
    first_priorities: FirstPriorities | None = None  # None: the replay gives items their first ones
    first_episode: int | None = None  # None: the first
    frames: FramePlan | None = None  # None: observations are sent whole


def fetch(reference: Any) -> Any:
    import ray

    return ray.get(reference)


class ActorProcess:
    """One Ray process. What fails is raised by a call, as itself: Ray tells less of a constructor's failure."""

    def __init__(self, plan: ActorPlan, network: Network) -> None:
        self._plan, self._network = plan, network
        self._actor: Actor | None = None
        self._window: FrameStore | None = None  # the last frames that were sent, where new items are ranked here
        self._version = -1

    def open(self) -> Actor:
        """Makes the environments and resets them, unless that is done."""
        if self._actor is None:
            plan, network = self._plan, self._network
            torch.set_num_threads(plan.threads)
            self._flat = flatten_parameters(cast(nn.Module, network))
            self._outbox = Outbox()
            self._maker = copy.deepcopy(plan.maker)  # arrays come read-only out of the object store
            how: dict[str, Any] = {"behaviour": plan.behaviour, "device": CPU, "seed": plan.seed}
            envs = plan.make_envs()
            feed = ReplayFeed(self._maker, self._outbox)
            if plan.frames is not None:
                obs, stack, reach = plan.frames
                feed = FramedFeed(self._maker, self._outbox, FrameNumbers(stack, envs.num_envs))
                if plan.first_priorities is not None:
                    self._window = FrameStore(reach, obs, stack, CPU)
            if plan.first_episode is not None:
                envs.reset(plan.first_episode)
            self._actor = Actor(envs, network, feed, **how)
            accelerate_acting(self._actor, CPU, compile=False)
        return self._actor

    def ready(self) -> str:
        """What resume cannot promise, once the environments are made."""
        return self.open().resume_note

    def collect(self, order: Order, weights: list[Any]) -> tuple[Facts, Items]:
        """weights: a reference to those of the order's version, fetched where they are not the ones at hand."""
        actor = self.open()
        if order.version != self._version:
            take_over(fetch(weights[0]), self._network, self._flat)
            self._version = order.version
        until = time.monotonic() + order.seconds
        steps = [actor.step(order.env_steps)]
        while len(steps) < order.vector_steps and time.monotonic() < until:
            steps.append(actor.step(order.env_steps))
        actor.flush()
        items = self._outbox.take()
        num_items = len(items["rewards"]) if "rewards" in items else 0
        if self._plan.first_priorities is not None:
            whole = self._whole(items)
            if num_items:
                items["priorities"] = self._plan.first_priorities(whole, self._network, self._maker)
        return Facts(joined_steps(steps), order.version, num_items, actor.num_open), items

    def _whole(self, items: Items) -> Items:
        """Items with the observations that their frames' ids stand for."""
        if self._window is None:
            return items
        items = dict(items)
        if FRAMES in items:
            self._window.add(items.pop(FRAMES), items.pop(STACKS))
        rows = {name: torch.from_numpy(self._window.rows_of(items[name])) for name in NAMED if name in items}
        return items | {name: self._window.stacks(each).numpy() for name, each in rows.items()}

    def state_dict(self) -> tuple[State, str]:
        """The actor's state, and what resume cannot promise of it."""
        actor = self.open()
        window = {} if self._window is None else {"window": self._window.state_dict()}
        return {**actor.state_dict(), **window}, actor.resume_note

    def load_state_dict(self, state: State) -> list[str]:
        """What there was to warn of, which nobody would see here."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.open().load_state_dict(state)
            if self._window is not None:
                self._window.load_state_dict(state["window"])
        return [str(warning.message) for warning in caught]
