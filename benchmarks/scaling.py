"""How ours scales: environments 1 to 512, batch 16 to 1,024, replay of 10^4 to 10^7 transitions, sequences of 10 to 80 steps.

environments   steps/s of DQN on CartPole's native vector form, whole loop, an update every 64 steps of all environments together
batch          transitions/s through the DQN learner (updates/s times batch), hidden 64 × 64
replay         sample + update pairs/s of prioritized replay, batch 32
sequences      steps/s through the R2D2 learner (updates/s times batch times length), batch 32, LSTM 64
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.common import Contender, Result, arguments, compare, prepare, repeat_for, save
from benchmarks.learner_peers import ACTIONS, OBS_DIM


def environments(count: int) -> Contender:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.workflows import train

    total = max(6_000, 100 * count)

    class Timing(Callback):
        """Looks at the clock after the first quarter and at the end, so that set-up and the final evaluation do not count."""

        def __init__(self) -> None:
            self.marks: list[tuple[int, float]] = []

        def on_step(self, run: Any, step: Any) -> None:
            now = run.clock.env_steps
            if (not self.marks and now >= total // 4) or now >= total:
                self.marks.append((now, time.perf_counter()))

    def measure() -> float:
        timing = Timing()
        with tempfile.TemporaryDirectory() as folder:
            config = TrainConfig(
                algo="dqn",
                env_id="CartPole-v1",
                seed=0,
                total_timesteps=total,
                output_dir=folder,
                device="cpu",
                num_envs=count,
                vectorization="native",
                compile=False,
                threads=1,
                eval_interval=0,
                eval_episodes=1,
                checkpoint_interval=0,
                algo_kwargs={
                    "hidden_sizes": (64, 64),
                    "batch_size": 64,
                    "learning_starts": 500,
                    "train_frequency": 64,
                    "epsilon_start": 0.1,
                },
            )
            train(config, callbacks=[timing])
        (first, began), (last, ended) = timing.marks[0], timing.marks[-1]
        return (last - first) / (ended - began)

    return measure


def batch(size: int, seconds: float) -> Contender:
    from rl_training.algorithms import DQN
    from rl_training.data import ReplayBuffer
    from rl_training.models import MLPQNetwork

    torch.manual_seed(0)
    learner = DQN(MLPQNetwork(OBS_DIM, ACTIONS, (64, 64)), 1e-3, 0.99, 500)
    replay = ReplayBuffer(10_000, (OBS_DIM,))
    replay.add_batch(**_transitions(10_000))
    updates = repeat_for(_counted(lambda step: learner.update(replay.sample(size), global_step=step)), seconds)
    return lambda: updates() * size


def replay(size: int, seconds: float) -> Contender:
    from rl_training.data import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(size, (OBS_DIM,))
    for _ in range(0, size, 10_000):
        buffer.add_batch(**_transitions(10_000))
    priorities = np.random.default_rng(0).random((64, 32), dtype=np.float32)

    def pair(step: int) -> None:
        drawn = buffer.sample(32, beta=0.5)
        buffer.update_priorities(drawn["indices"], priorities[step % 64])

    return repeat_for(_counted(pair), seconds)


def sequences(length: int, seconds: float) -> Contender:
    from rl_training.algorithms import R2D2
    from rl_training.data import RecurrentReplayBuffer
    from rl_training.models import LSTMQNetwork

    torch.manual_seed(0)
    learner = R2D2(LSTMQNetwork((OBS_DIM,), ACTIONS, 64, (), (), 64, 1), 1e-3, 0.99, 1_000, n_step=5)
    buffer = RecurrentReplayBuffer(64 * length, 1, (OBS_DIM,), length, 64)
    state, rng = (np.zeros((1, 64), np.float32),) * 2, np.random.default_rng(0)
    for t in range(64 * length):
        obs = rng.standard_normal((2, OBS_DIM), dtype=np.float32)
        step = {"obs": obs[0], "next_obs": obs[1], "actions": t % ACTIONS, "rewards": 1.0, "dones": False}
        buffer.add(env_index=0, **step, episode_start=t == 0, initial_state=state)
    updates = repeat_for(_counted(lambda step: learner.update(buffer.sample(32), global_step=step)), seconds)
    return lambda: updates() * 32 * length


def _transitions(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((2, count, OBS_DIM), dtype=np.float32)
    fields = {"obs": obs[0], "next_obs": obs[1], "actions": rng.integers(ACTIONS, size=count), "rewards": np.ones(count, np.float32)}
    return {**fields, "dones": np.zeros(count, np.float32)}


def _counted(call: Callable[[int], object]) -> Callable[[int], None]:
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            call(step)

    return work


def cases(options: Any) -> Iterator[tuple[str, str, dict[str, Callable[[], Contender]]]]:
    seconds = options.seconds
    yield "environments", "environment steps/s", {f"ours, {n}": lambda n=n: environments(n) for n in (1, 4, 16, 64, 256, 512)}
    yield "batch", "transitions/s", {f"ours, {n}": lambda n=n: batch(n, seconds) for n in (16, 64, 256, 1_024)}
    yield "replay", "sample + update pairs/s", {f"ours, {n}": lambda n=n: replay(n, seconds) for n in (10**4, 10**5, 10**6, 10**7)}
    yield "sequences", "steps/s", {f"ours, {n}": lambda n=n: sequences(n, seconds) for n in (10, 20, 40, 80)}


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    results: list[Result] = []
    for case, unit, makers in cases(options):
        if options.only in case:
            results.append(
                compare(case, unit, {name: make() for name, make in makers.items()}, rounds=options.rounds, ours=next(iter(makers)))
            )
    save(options.json, options, results)


if __name__ == "__main__":
    main()
