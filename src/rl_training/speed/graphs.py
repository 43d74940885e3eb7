"""What a CUDA graph replays: one update, and one acting pass of the network.

Each is a plain method over static tensors that never asks the host. It runs as it is on any device, which is how it is tested; on a GPU
`Captured` records it once and then replays it, which costs one launch instead of a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import LazyMetrics, TDLoss
from rl_training.algorithms.views import Aligned
from rl_training.data.replay import Replay
from rl_training.models.modes import evaluating
from rl_training.models.network import CoreState, Network, reads_previous
from rl_training.speed.pure_step import draws
from rl_training.speed.streams import LANES, on_streams, side_stream
from rl_training.types import Array, Batch, Previous, UpdateResult

WARM_UP = 3  # calls before the capture: libraries choose their algorithms and allocate in the first ones


class Captured:
    """Calls `function`; on a GPU the calls after the first few replay a CUDA graph of it.

    The first calls are real ones: what the function changes, it changes once a call, captured or not. `generators` are those it draws from.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._function, self._device = function, device
        self._generators = list({id(g): g for g in generators}.values())
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            for lane in range(LANES):
                side_stream(device, lane)  # none is made during a capture
        self._warm_up_left = WARM_UP if device.type == "cuda" else -1

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._warm_up_left < 0:
            self._function()
        elif self._warm_up_left > 0:
            self._warm_up_left -= 1
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                self._function()
            torch.cuda.current_stream(self._device).wait_stream(stream)
        else:
            self._capture()
            self()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._function()
        self._graph = graph


class GraphedUpdates:
    """Sample, loss, gradient, Adam and priorities as one graph; learning rate and β are tensors on the device.

    The target follows outside of it, at the few updates where it does. What an update reports stays on the device, in tensors that the next
    one overwrites: a metric is read before that, or not at all.
    """

    overlaps = True

    def __init__(
        self,
        learner: QLearner,
        replay: Replay,
        batch_size: int,
        beta: Callable[[int], float] | None,
        device: torch.device,
        prepare: Callable[[Batch], None] | None = None,
    ) -> None:
        """prepare: called with a batch before the first update, outside of the graph."""
        self._prepare, self.compiles = prepare, prepare is not None
        self._learner, self._replay, self._batch_size, self._beta = learner, replay, batch_size, beta
        learner.view.run_passes = on_streams
        self._rate_now, self._beta_now = Scheduled(device, torch.float32), Scheduled(device, torch.float64)
        self._names = LazyMetrics.names(learner.rule)
        # Only those it draws from: each costs two small launches a replay.
        generators = [replay.generator, *([learner.generator] if draws(learner.q_network) else [])]
        self._update = Captured(self._one_update, device, [g for g in generators if isinstance(g, torch.Generator)])
        self.outcome: StaticOutcome | None = None
        self.count = 0

    def __call__(self, global_step: int) -> UpdateResult:
        learner = self._learner
        self._rate_now.set(learner.current_learning_rate(global_step))
        if self._beta is not None:
            self._beta_now.set(self._beta(global_step))
        if self._prepare is not None:
            self._prepare(self._sample())
            self._prepare, self.compiles = None, False
        self._update()
        learner.sync_target_if_due(global_step)
        learner.last_outcome = self.outcome
        self.count += 1
        return UpdateResult(NewestMetrics(self, self._names), 1)

    def _sample(self) -> Batch:
        if self._beta is None:
            return self._replay.sample(self._batch_size)
        return self._replay.sample(self._batch_size, beta=self._beta_now.value)

    def _one_update(self) -> None:
        learner = self._learner
        batch = self._sample()
        grads, td, aligned = learner.gradient(batch)
        learner.optimizer.step(grads, self._rate_now.value, learner.max_grad_norm)
        if self._beta is not None:
            self._give_back(batch["indices"], learner.priorities(td, aligned))
        self.outcome = StaticOutcome(learner, aligned)

    def _give_back(self, indices: Tensor, priorities: Tensor) -> None:
        self._replay.update_priorities(indices, priorities)


class HostFedUpdates(GraphedUpdates):
    """The same for a replay in host memory: it is sampled there, and the graph learns from static tensors that the batch is copied to.

    Priorities go back to the host, which waits for them: such an update is over when it returns.
    """

    _batch: Batch
    _priorities: Tensor

    def __call__(self, global_step: int) -> UpdateResult:
        if self._beta is None:
            batch = self._replay.sample(self._batch_size)
        else:
            batch = self._replay.sample(self._batch_size, beta=self._beta(global_step))
        if self.count:
            for name, tensor in self._batch.items():
                tensor.copy_(batch[name])
        else:
            self.overlaps = self._beta is None
            self._batch = {name: tensor.clone() for name, tensor in batch.items()}
        result = super().__call__(global_step)
        if self._beta is not None:
            self._replay.update_priorities(batch["indices"], self._priorities.cpu())
        return result

    def _sample(self) -> Batch:
        return self._batch

    def _give_back(self, indices: Tensor, priorities: Tensor) -> None:
        self._priorities = priorities


class StaticOutcome:
    """What the newest replay left in the graph's memory. Nothing is computed before it is read, and then outside of the graph.

    The autograd graph is not kept: a capture must not meet a tensor of an earlier call.
    """

    def __init__(self, learner: QLearner, aligned: Aligned) -> None:
        self._learner = learner
        self._aligned = aligned._replace(chosen=aligned.chosen.detach())

    @torch.no_grad()
    def _td(self) -> TDLoss:
        """Made anew for every reading: a TDLoss remembers what it once computed, and these tensors change."""
        rule, aligned = self._learner.rule, self._aligned
        return TDLoss(rule, aligned.chosen, rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts), aligned.taus)

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        return self._learner.metrics(self._td(), self._aligned)

    @property
    def td_errors(self) -> Tensor:
        return self._td().td_error

    @property
    def priorities(self) -> Tensor:
        return self._learner.priorities(self._td(), self._aligned)


class Scheduled:
    """A number that follows a schedule, as a tensor on the device; set only when it changes."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.value = torch.zeros((), device=device, dtype=dtype)
        self._now = 0.0

    def set(self, value: float) -> None:
        if value != self._now:
            self._now = value
            self.value.fill_(value)


class NewestMetrics(Mapping[str, Tensor]):
    """The metrics of the newest update; those of an older one are gone, which is said rather than passed over."""

    def __init__(self, updates: GraphedUpdates, names: Sequence[str]) -> None:
        self._updates, self._names, self._count = updates, names, updates.count

    def __getitem__(self, name: str) -> Tensor:
        if self._updates.count != self._count or self._updates.outcome is None:
            raise RuntimeError("the metrics of an update in a CUDA graph must be read before the next update")
        return self._updates.outcome.metrics[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class GraphedForward:
    """What a network says of `num_envs` observations, as one graph; see `actor.Forward`.

    One copy of the observations to the device, one of its outputs back, both through page-locked memory.
    """

    def __init__(self, network: Network, example: Array, state: CoreState, generator: torch.Generator, device: torch.device) -> None:
        self._network, self._generator, self._device = network, generator, device
        self._num_envs, on_gpu = len(example), device.type == "cuda"
        self._host_obs = torch.zeros_like(torch.from_numpy(example), pin_memory=on_gpu)
        self._host_starts = torch.zeros(self._num_envs, dtype=torch.bool, pin_memory=on_gpu)
        self._obs_array, self._starts_array = self._host_obs.numpy(), self._host_starts.numpy()
        self._obs, self._starts = self._host_obs.to(device), self._host_starts.to(device)
        # what led to the observations, where the network reads it
        self._led = _Led(self._num_envs, device) if reads_previous(network) else None
        self._state, self._next_state = (tuple(x.clone() for x in state) for _ in range(2))
        self._host_outputs = torch.zeros(0)
        self._outputs_array: Array = self._host_outputs.numpy()
        self._stream = torch.cuda.current_stream(device) if on_gpu else None  # looked up once: that alone takes tens of microseconds
        self._pass = Captured(self._one_pass, device, [generator] if draws(network) else [])

    @torch.no_grad()
    def __call__(self, obs: Array, state: CoreState, is_first: Array, previous: Any = None) -> tuple[Array, CoreState]:
        """previous: as `actor.Forward` has it."""
        self._obs_array[...] = obs
        if self._led is not None:
            self._led.set(previous)
        if state:
            self._starts_array[...] = is_first
            for mine, given in zip(self._state, state, strict=True):
                mine.copy_(given)
        self._pass()
        # Copies: the graph writes the next step's state where this one's is, and the replay still wants this one.
        carried = tuple(x.clone() for x in self._next_state)
        if self._stream is not None:
            self._stream.synchronize()
        return np.array(self._outputs_array), carried

    @torch.no_grad()
    def _one_pass(self) -> None:
        self._obs.copy_(self._host_obs, non_blocking=True)
        if self._state:
            self._starts.copy_(self._host_starts, non_blocking=True)
        drawn = self._network.draw(self._generator, (self._num_envs,), "acting")
        led = {} if self._led is None else {"previous": self._led.on_device()}
        with evaluating(self._network):
            outputs, state = self._network.step(self._obs, self._state, self._starts, drawn, **led)
        if self._host_outputs.shape != outputs.shape:  # in the first pass
            self._host_outputs = torch.empty_like(outputs, device="cpu", pin_memory=self._device.type == "cuda")
            self._outputs_array = self._host_outputs.numpy()
        self._host_outputs.copy_(outputs, non_blocking=True)
        for mine, new in zip(self._next_state, state, strict=True):
            mine.copy_(new)


class _Led:
    """The actions and rewards that led to the observations, on their way to the device like those."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._host = Previous(
            torch.zeros(num_envs, dtype=torch.int64, pin_memory=pinned), torch.zeros(num_envs, dtype=torch.float32, pin_memory=pinned)
        )
        self._device = Previous(*(part.to(device) for part in self._host))

    def set(self, previous: Any) -> None:
        for mine, given in zip(self._host, (previous.actions, previous.rewards), strict=True):
            mine.numpy()[...] = given

    def on_device(self) -> Previous:
        for mine, host in zip(self._device, self._host, strict=True):
            mine.copy_(host, non_blocking=True)
        return self._device
