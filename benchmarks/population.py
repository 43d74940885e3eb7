"""Many runs of DQN, QR-DQN or IQN on a classic task at once: every tensor has a leading axis of runs. For benchmarks/search.py.

Runs of a population have the same shapes (layers, batch, quantiles, cadence) and differ in all other numbers. On a GPU a step of all of
them is a CUDA graph. Rules, backups, n-step returns and Adam are the package's; what is its own is the network, which multiplies a matrix
for each run, and the environments, which are tensors. tests/test_search.py holds these against Gymnasium's, and an update against the
package's learners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.adam import FlatAdam
from rl_training.algorithms.backups import Bootstrap, DoubleBackup, MaxBackup, Seen, take_action
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.distributional_losses import midpoints
from rl_training.algorithms.sequence_view import n_step_returns

Settings = dict[str, Any]
"""The package's names and units (`algo_kwargs`); `head` is scalar, quantile or implicit."""

DEFAULTS: Settings = {
    "head": "scalar",
    "num_quantiles": 1,
    "num_acting_quantiles": 32,
    "embedding_dim": 64,
    "hidden_sizes": [128, 128],
    "batch_size": 128,
    "train_frequency": 2,
    "gradient_steps": 1,
    "n_step": 1,
    "buffer_capacity": 50_000,
    "learning_starts": 1_000,
    "learning_rate": 1e-3,
    "learning_rate_end": 1e-4,
    "gamma": 0.99,
    "target_update_interval": 500,
    "tau": 1.0,
    "max_grad_norm": 10.0,
    "epsilon_end": 0.05,
    "exploration_fraction": 0.2,
    "double_q": False,
}
SHAPES = (
    "head",
    "num_quantiles",
    "num_acting_quantiles",
    "embedding_dim",
    "hidden_sizes",
    "batch_size",
    "train_frequency",
    "gradient_steps",
    "learning_starts",
)


# Environments: states [..., S] → states, rewards, whether the episode ended


def _cartpole(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, v, angle, spin = state.unbind(-1)
    push = torch.where(action == 1, 10.0, -10.0)
    cos, sin = angle.cos(), angle.sin()
    share = (push + 0.05 * spin * spin * sin) / 1.1
    spin_rate = (9.8 * sin - cos * share) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
    rate = share - 0.05 * spin_rate * cos / 1.1
    state = torch.stack([x + 0.02 * v, v + 0.02 * rate, angle + 0.02 * spin, spin + 0.02 * spin_rate], -1)
    return state, torch.ones_like(x), (state[..., 0].abs() > 2.4) | (state[..., 2].abs() > 12 * 2 * math.pi / 360)


def _mountain_car(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, v = state.unbind(-1)
    v = (v + (action - 1) * 0.001 - torch.cos(3 * x) * 0.0025).clamp(-0.07, 0.07)
    x = (x + v).clamp(-1.2, 0.6)
    v = torch.where((x <= -1.2) & (v < 0), 0.0, v)
    return torch.stack([x, v], -1), -torch.ones_like(x), (x >= 0.5) & (v >= 0)


def _acrobot(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    torque = (action - 1).float()

    def rates(a: Tensor, b: Tensor, va: Tensor, vb: Tensor) -> tuple[Tensor, ...]:
        cos, sin = b.cos(), b.sin()
        d1, d2 = 3.5 + cos, 1.25 + 0.5 * cos  # Sutton and Barto's, with masses, lengths and inertias of 1
        phi2 = 4.9 * (a + b).sin()
        phi1 = -0.5 * vb * sin * (vb + 2 * va) + 14.7 * a.sin() + phi2
        rate = (torque + d2 / d1 * phi1 - 0.5 * va * va * sin - phi2) / (1.25 - d2 * d2 / d1)
        return va, vb, -(d2 * rate + phi1) / d1, rate

    def ahead(by: float, k: Sequence[Tensor]) -> list[Tensor]:
        return [y + by * slope for y, slope in zip(start, k, strict=True)]

    start, h = state.unbind(-1), 0.2
    k1 = rates(*start)
    k2 = rates(*ahead(h / 2, k1))
    k3 = rates(*ahead(h / 2, k2))
    k4 = rates(*ahead(h, k3))
    a, b, va, vb = ahead(h / 6, [p + 2 * q + 2 * r + s for p, q, r, s in zip(k1, k2, k3, k4, strict=True)])
    a, b = (angle - 2 * math.pi * torch.round(angle / (2 * math.pi)) for angle in (a, b))
    va, vb = va.clamp(-4 * math.pi, 4 * math.pi), vb.clamp(-9 * math.pi, 9 * math.pi)
    over = -a.cos() - (a + b).cos() > 1
    return torch.stack([a, b, va, vb], -1), torch.where(over, 0.0, -1.0), over


def _acrobot_observation(state: Tensor) -> Tensor:
    a, b, va, vb = state.unbind(-1)
    return torch.stack([a.cos(), a.sin(), b.cos(), b.sin(), va, vb], -1)


@dataclass(frozen=True)
class Task:
    env_id: str
    total_timesteps: int
    limit: int
    action_dim: int
    obs_dim: int
    first: tuple[tuple[float, float], ...]  # a first state is uniform between these
    step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    observe: Callable[[Tensor], Tensor] = lambda state: state

    def fresh(self, *shape: int, device: str) -> Tensor:
        # filled, not copied from the host: a copy from pageable memory cannot be part of a CUDA graph
        low, high = (torch.stack([torch.full((), x, device=device) for x in side]) for side in zip(*self.first, strict=True))
        return low + torch.rand(*shape, len(self.first), device=device) * (high - low)


TASKS = {
    "cartpole": Task("CartPole-v1", 50_000, 500, 2, 4, ((-0.05, 0.05),) * 4, _cartpole),
    "mountaincar": Task("MountainCar-v0", 120_000, 200, 3, 2, ((-0.6, -0.4), (0.0, 0.0)), _mountain_car),
    "acrobot": Task("Acrobot-v1", 100_000, 500, 3, 6, ((-0.1, 0.1),) * 4, _acrobot, _acrobot_observation),
}


class Transitions(NamedTuple):
    """[R, B] of each run's replay; rewards are n-step returns, `discounts` γᵏ, 0 after a termination."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    next_obs: Tensor


class Population:
    """R runs of one shape on one task, each with its own numbers."""

    def __init__(self, task: Task, runs: Sequence[Settings], *, total_timesteps: int, seed: int, device: str) -> None:
        runs = [DEFAULTS | run for run in runs]
        self.task, self.runs, self.total, self.device = task, runs, total_timesteps, device
        self.shape = {key: runs[0][key] for key in SHAPES}
        if any(run[key] != self.shape[key] for run in runs for key in SHAPES):
            raise ValueError(f"runs that go together agree on {', '.join(SHAPES)}")
        torch.manual_seed(seed)
        self.numbers = {key: self._column(key) for key in DEFAULTS if key not in SHAPES}  # [R, 1]
        self._make_networks()
        R, L = len(runs), max(int(run["buffer_capacity"]) for run in runs)
        real = torch.get_default_dtype()
        kinds = {"obs": real, "next_obs": real, "actions": torch.long, "rewards": real}
        kinds |= {"terminated": torch.bool, "ended": torch.bool}
        sizes = {"obs": (task.obs_dim,), "next_obs": (task.obs_dim,)}
        self.memory = {key: torch.zeros(R, L, *sizes.get(key, ()), dtype=kind, device=device) for key, kind in kinds.items()}
        self.state, self.length = task.fresh(R, 1, device=device), torch.zeros(R, 1, dtype=torch.long, device=device)
        self.place, self.steps = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(1, device=device)

    def _column(self, key: str) -> Tensor:
        return torch.tensor([[float(run[key])] for run in self.runs], device=self.device)

    # Networks

    def _make_networks(self) -> None:
        R, task, s = len(self.runs), self.task, self.shape
        first, second = s["hidden_sizes"]
        implicit = s["head"] == "implicit"
        layers = [(task.obs_dim, first), (first, second), (second, task.action_dim * (1 if implicit else s["num_quantiles"]))]
        if implicit:
            layers.append((s["embedding_dim"], first))  # of τ
        self.sizes = [size for inputs, outputs in layers for size in ((inputs, outputs), (1, outputs))]
        self.flat = torch.cat(
            [torch.empty(R, i * o, device=self.device).uniform_(-(k**-0.5), k**-0.5) for k, o in layers for i in (k, 1)], dim=1
        )
        self.flat_target = self.flat.clone()
        self.weights = [view.detach().requires_grad_() for view in self._views(self.flat)]
        self.target = self._views(self.flat_target)
        # Adam's step at a learning rate of 1, which each run multiplies by its own
        self.direction = torch.zeros_like(self.flat).view(-1)
        self.adam = FlatAdam(self.direction, [self.direction.shape])
        self.rule = make_rule(s["head"])
        self.frequencies = math.pi * torch.arange(s["embedding_dim"], device=self.device)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([rows * columns for rows, columns in self.sizes], dim=1)
        return [part.view(len(self.runs), *size) for part, size in zip(parts, self.sizes, strict=True)]

    def forward(self, weights: list[Tensor], obs: Tensor, taus: Tensor | None = None) -> Tensor:
        """obs [R, B, O] → [R, B, A] of a scalar head, else [R, B, A, N]; an implicit head at the levels `taus` [R, N]."""
        R, B, A = len(self.runs), obs.shape[1], self.task.action_dim
        hidden = torch.baddbmm(weights[1], obs, weights[0]).relu()
        if self.shape["head"] == "implicit":
            assert taus is not None
            phi = torch.baddbmm(weights[7], torch.cos(taus.unsqueeze(-1) * self.frequencies), weights[6]).relu()  # [R, N, H]
            hidden = (hidden.unsqueeze(2) * phi.unsqueeze(1)).flatten(1, 2)
        hidden = torch.baddbmm(weights[3], hidden, weights[2]).relu()
        out = torch.baddbmm(weights[5], hidden, weights[4])
        if self.shape["head"] == "scalar":
            return out
        return out.view(R, B, -1, A).transpose(2, 3) if self.shape["head"] == "implicit" else out.view(R, B, A, -1)

    def q_values(self, out: Tensor) -> Tensor:
        return out if self.shape["head"] == "scalar" else out.mean(-1)

    def greedy(self, obs: Tensor) -> Tensor:
        taus = midpoints(self.shape["num_acting_quantiles"], torch.device(self.device)).expand(len(self.runs), -1)
        return self.q_values(self.forward(self.weights, obs, taus)).argmax(-1)

    def draw_taus(self) -> Tensor:
        count = self.shape["num_quantiles"]
        return (torch.arange(count, device=self.device) + torch.rand(len(self.runs), count, device=self.device)) / count

    # One step of all runs

    @torch.no_grad()
    def act(self) -> None:
        R, number, task = len(self.runs), self.numbers, self.task
        obs = task.observe(self.state)
        progress = (self.steps / (number["exploration_fraction"] * self.total)).clamp(max=1)
        epsilon = torch.where(self.steps < self.shape["learning_starts"], 1.0, 1 - progress * (1 - number["epsilon_end"]))
        chance = torch.randint(task.action_dim, (R, 1), device=self.device)
        action = torch.where(torch.rand(R, 1, device=self.device) < epsilon, chance, self.greedy(obs))
        state, reward, terminated = task.step(self.state, action)
        ended = terminated | (self.length + 1 >= task.limit)
        row = {"obs": obs, "next_obs": task.observe(state), "actions": action, "rewards": reward, "terminated": terminated, "ended": ended}
        for key, value in row.items():
            self.memory[key].index_copy_(1, self.place, value)
        self.state.copy_(torch.where(ended.unsqueeze(-1), task.fresh(R, 1, device=self.device), state))
        self.length.copy_(torch.where(ended, 0, self.length + 1))
        self.place.copy_((self.place + 1) % self.memory["rewards"].shape[1])
        self.steps += 1

    @torch.no_grad()
    def sample(self) -> Transitions:
        """Uniform over each run's replay, but for its last n − 1 steps; n-step windows stop where an episode does."""
        R, L = self.memory["rewards"].shape
        n = self.numbers["n_step"].long()
        stored = torch.minimum(self.steps.long(), self.numbers["buffer_capacity"].long())
        age = n - 1 + (torch.rand(R, self.shape["batch_size"], device=self.device) * (stored - n + 1)).long()
        begin = (self.place - 1 - torch.minimum(age, stored - 1)) % L
        longest = max(int(run["n_step"]) for run in self.runs)
        ahead, run = torch.arange(longest, device=self.device)[:, None, None], torch.arange(R, device=self.device).unsqueeze(1)
        at = (begin + ahead) % L  # [K, R, B]: the steps after each that was drawn, as sequences
        rewards, ended, terminated = (self.memory[key][run, at] for key in ("rewards", "ended", "terminated"))
        over = ended.cumsum(0) - ended.long()  # episodes that ended before this step
        counts = ((ahead < n) & (over == 0)).to(rewards.dtype)
        gamma = self.numbers["gamma"].expand_as(begin).flatten()
        found = n_step_returns(rewards.flatten(1), terminated.to(rewards.dtype).flatten(1), counts.flatten(1), gamma=gamma, n_step=longest)
        last = at.gather(0, (found.steps[0].view_as(begin) - 1).unsqueeze(0)).squeeze(0)
        return Transitions(
            self.memory["obs"][run, begin],
            self.memory["actions"].gather(1, begin),
            found.rewards[0].view_as(begin),
            found.discounts[0].view_as(begin),
            self.memory["next_obs"][run, last],
        )

    def bootstrap(self, next_obs: Tensor, actions: Tensor) -> Bootstrap:
        """Each run's own backup: max, or double Q-learning."""
        seen = Seen(self.forward(self.target, next_obs, self.draw_taus()), self.q_values, actions)
        greedy = MaxBackup()(seen).outputs
        if not any(run["double_q"] for run in self.runs):
            return Bootstrap(greedy)
        online = self.q_values(self.forward(self.weights, next_obs, self.draw_taus()))
        selected = DoubleBackup()(seen._replace(online_next_q_values=online)).outputs
        double = self.numbers["double_q"].bool()
        return Bootstrap(torch.where(double if greedy.ndim == 2 else double.unsqueeze(-1), selected, greedy))

    def update(self, batch: Transitions | None = None) -> None:
        """One step of Adam along the gradient of the rule's loss, a mean over each run's batch; runs share no weight."""
        obs, actions, rewards, discounts, next_obs = self.sample() if batch is None else batch
        with torch.no_grad():
            target = self.rule.target(self.bootstrap(next_obs, actions), rewards, discounts)
        taus = self.draw_taus() if self.shape["head"] == "implicit" else None
        chosen = take_action(self.forward(self.weights, obs, taus), actions)
        loss = self.rule.loss(chosen, target, None if taus is None else taus.unsqueeze(1))
        gradients = torch.autograd.grad(loss.mean(1).sum(), self.weights)
        self._step(torch.cat([gradient.flatten(1) for gradient in gradients], dim=1))

    @torch.no_grad()
    def _step(self, gradient: Tensor) -> None:
        """Clipped, and with the learning rate of now, run by run."""
        number = self.numbers
        gradient = gradient * (number["max_grad_norm"] / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
        self.direction.zero_()
        self.adam.step([gradient.view(-1)], 1.0, None)
        left = (1 - self.steps / self.total).clamp(min=0)
        rate = number["learning_rate_end"] + (number["learning_rate"] - number["learning_rate_end"]) * left
        self.flat.add_(rate * self.direction.view_as(self.flat))

    @torch.no_grad()
    def follow(self) -> None:
        """The targets of the runs whose interval was crossed in this round."""
        every = self.numbers["target_update_interval"]
        crossed = torch.floor(self.steps / every) - torch.floor((self.steps - self.shape["train_frequency"]) / every)
        self.flat_target.lerp_(self.flat, 1 - (1 - self.numbers["tau"]) ** crossed)

    # A whole run

    @torch.no_grad()
    def evaluate(self, episodes: int = 100) -> list[float]:
        """Mean greedy return of each run."""
        R, task = len(self.runs), self.task
        state, total = task.fresh(R, episodes, device=self.device), torch.zeros(R, episodes, device=self.device)
        alive = torch.ones(R, episodes, dtype=torch.bool, device=self.device)

        def step() -> None:
            after, reward, terminated = task.step(state, self.greedy(task.observe(state)))
            state.copy_(after)
            total.add_(reward * alive)
            alive.logical_and_(~terminated)

        replay = self._captured(step)
        state.copy_(task.fresh(R, episodes, device=self.device))  # capturing has played
        total.zero_()
        alive.fill_(True)
        for _ in range(task.limit):
            replay()
        return total.mean(-1).tolist()

    def _captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """`step` as a CUDA graph; it is done once while captured."""
        if self.device == "cpu":
            return step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def train(self) -> list[list[float]]:
        """The greedy return of each run half way and at the end."""
        starts, frequency = self.shape["learning_starts"], self.shape["train_frequency"]
        for _ in range(starts):
            self.act()
        act, update, follow = self._captured(self.act), self._captured(self.update), self._captured(self.follow)
        rounds, curve = (self.total - starts) // frequency, []
        for number in range(rounds):
            for _ in range(frequency):
                act()
            for _ in range(self.shape["gradient_steps"]):
                update()
            follow()
            if number in (rounds // 2, rounds - 1):
                curve.append(self.evaluate())
        return [list(points) for points in zip(*curve, strict=True)]
