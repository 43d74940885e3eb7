"""Environment steps per second of DQN on MinAtar's Breakout, whole loop: act, step, store, sample, update. One environment.

All of them do the same work: the same game (which looks at the clock itself, at its `--warm`-th and its last step, so that imports, set-up
and final evaluation count for nobody), the network of MinAtar's paper (16 convolutions of 3 × 3, 128 units), batch 32, an update every four
steps, Huber loss, Adam, a fixed ε, the target copied every 1,000 steps, images stored as bytes. Ours stands there twice, as it is and with
its update compiled, which is done before the clock starts; ours alone also writes its usual logs.

The peer is one screen of plain PyTorch in the manner of CleanRL's `dqn_atari.py`; as it is (a Gymnasium vector environment of one), and
with the bare environment, which CleanRL does not do but is faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.common import COMPILED, arguments, clock, compare, prepare, save
from benchmarks.throughput import timed
from rl_training.envs.minatar import make_game

ENV_ID = "TimedBreakout-v1"
LEARNING_STARTS, BATCH, CAPACITY, EVERY, TARGET, EPSILON, RATE = 500, 32, 100_000, 4, 1_000, 0.1, 2.5e-4


class TimedGame(gym.Wrapper[Any, Any, Any, Any]):
    """A game that looks at the clock at two of its steps."""

    first: ClassVar[int] = 0
    last: ClassVar[int] = 0
    marks: ClassVar[dict[int, float]] = {}
    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count in (self.first, self.last):
            self.marks.setdefault(self.count, clock())  # the training environment gets there before any evaluation
        return self.env.step(action)


def make_timed(**kwargs: Any) -> gym.Env[Any, Any]:
    return TimedGame(make_game(game="breakout", use_minimal_action_set=True, **kwargs))


class QNetwork(nn.Module):
    def __init__(self, channels: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, actions)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.network(x.permute(0, 3, 1, 2).float())
        return out


class Replay:
    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.obs, self.next_obs = (np.zeros((CAPACITY, *shape), np.uint8) for _ in range(2))
        self.actions = np.zeros((CAPACITY, 1), np.int64)
        self.rewards, self.dones = (np.zeros(CAPACITY, np.float32) for _ in range(2))
        self.position, self.size, self.rng = 0, 0, np.random.default_rng(seed)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any) -> None:
        i = self.position
        self.obs[i], self.next_obs[i], self.actions[i], self.rewards[i], self.dones[i] = obs, next_obs, action, reward, done
        self.position = (i + 1) % CAPACITY
        self.size = min(self.size + 1, CAPACITY)

    def sample(self) -> tuple[torch.Tensor, ...]:
        rows = self.rng.integers(self.size, size=BATCH)
        return tuple(torch.from_numpy(field[rows]) for field in (self.obs, self.next_obs, self.actions, self.rewards, self.dones))


def train_single_file(total: int, *, vector: bool, seed: int = 0) -> None:
    torch.manual_seed(seed)
    explore = np.random.default_rng(seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(ENV_ID))
    envs = gym.vector.SyncVectorEnv([lambda: env], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP) if vector else None
    shape, actions = env.observation_space.shape, int(env.action_space.n)  # type: ignore[attr-defined]
    assert shape is not None
    q, target = QNetwork(shape[-1], actions), QNetwork(shape[-1], actions)
    target.load_state_dict(q.state_dict())
    optimizer, replay = torch.optim.Adam(q.parameters(), lr=RATE), Replay(shape, seed)
    obs, _ = (envs or env).reset(seed=seed)
    for step in range(1, total + 1):
        if step <= LEARNING_STARTS or explore.random() < EPSILON:
            action = int(explore.integers(actions))
        else:
            with torch.no_grad():
                action = int(q(torch.as_tensor(obs if vector else obs[None])).argmax(1))
        if envs is not None:
            next_obs, rewards, terminated, truncated, infos = envs.step(np.array([action]))
            final = infos["final_obs"][0] if terminated[0] or truncated[0] else next_obs[0]
            replay.add(obs[0], final, action, rewards[0], terminated[0])
        else:
            next_obs, reward, over, cut, _ = env.step(action)
            replay.add(obs, next_obs, action, reward, over)
            if over or cut:
                next_obs, _ = env.reset()
        obs = next_obs
        if step > LEARNING_STARTS and step % EVERY == 0:
            seen, after, taken, rewarded, dones = replay.sample()
            with torch.no_grad():
                goal = rewarded + 0.99 * target(after).max(dim=1).values * (1 - dones)
            loss = F.smooth_l1_loss(q(seen).gather(1, taken).squeeze(), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % TARGET == 0:
            for mine, theirs in zip(target.parameters(), q.parameters(), strict=True):
                mine.data.copy_(theirs.data)


def train_ours(total: int, *, threads: int, compile: bool = False) -> None:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.workflows import train

    with tempfile.TemporaryDirectory() as output_dir:
        train(
            TrainConfig(
                algo="dqn",
                env_id=ENV_ID,
                seed=0,
                total_timesteps=total,
                output_dir=output_dir,
                device="cpu",
                threads=threads,
                compile=compile,
                eval_interval=0,
                eval_episodes=1,
                eval_max_steps=100,
                checkpoint_interval=0,
                checkpoint_replay=False,
                algo_kwargs={
                    "learning_rate": RATE,
                    "buffer_capacity": CAPACITY,
                    "learning_starts": LEARNING_STARTS,
                    "batch_size": BATCH,
                    "train_frequency": EVERY,
                    "target_update_interval": TARGET,
                    "epsilon_start": EPSILON,
                    "epsilon_end": EPSILON,
                    "torso": "minatar",
                    "hidden_sizes": [128],
                    "max_grad_norm": None,
                },
            )
        )


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--warm", type=int, default=1_500, help="steps before the clock starts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6_000, help="steps on the clock (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    gym.register(id=ENV_ID, entry_point=make_timed)
    work: dict[str, Callable[[int], object]] = {
        "ours": partial(train_ours, threads=options.threads),
        "CleanRL-style": partial(train_single_file, vector=True),
        "CleanRL-style, bare environment": partial(train_single_file, vector=False),
    }
    if not options.no_compile:
        work[COMPILED] = partial(train_ours, threads=options.threads, compile=True)
        work[COMPILED](LEARNING_STARTS + EVERY)  # into the cache
    contenders = {name: timed(run, options.warm, options.warm + options.steps, env=TimedGame) for name, run in work.items()}
    case = "DQN, MinAtar Breakout, an update every four steps"
    save(options.json, options, [compare(case, "environment steps/s", contenders, rounds=options.rounds)])


if __name__ == "__main__":
    main()
