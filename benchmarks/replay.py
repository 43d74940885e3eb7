"""Replay alone: our buffers beside cpprb's (C++) and Tianshou's (numba) on CartPole-like transitions, and our cost by number of items.

A prioritized pair is one whole `sample` (observations and all, indices, importance weights) and the `update_priorities` that follows. Ours
gives torch tensors, ready for a network; the peers give NumPy arrays, which a learner would still have to convert.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks.common import Result, arguments, compare, prepare, repeat_for, save

Work = Callable[[int], object]

OBS_DIM, ALPHA, BETA, EPS = 4, 0.6, 0.4, 1e-6
POOL = 256  # batches of priorities drawn beforehand, so that nobody's time includes making them


def transitions(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((2, count, OBS_DIM), dtype=np.float32)
    ends = (rng.random(count) < 0.02).astype(np.float32)
    return {"obs": obs[0], "actions": rng.integers(2, size=count), "rewards": np.ones(count, np.float32), "next_obs": obs[1], "dones": ends}


def priorities(count: int) -> np.ndarray:
    return np.random.default_rng(1).exponential(size=count)


def our_buffer(items: int, *, prioritized: bool) -> Any:
    from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer

    shape = (OBS_DIM,)
    buffer: Any = PrioritizedReplayBuffer(items, shape, alpha=ALPHA, priority_eps=EPS) if prioritized else ReplayBuffer(items, shape)
    part = transitions(min(items, 1_000_000))
    for _ in range(items // len(part["rewards"])):
        buffer.add_batch(**part)
    if prioritized:
        buffer.update_priorities(np.arange(items), priorities(items))
    return buffer


def our_pairs(items: int, batch_size: int) -> Work:
    buffer = our_buffer(items, prioritized=True)
    pool = list(torch.from_numpy(priorities(POOL * batch_size).astype(np.float32)).view(POOL, -1))

    def work(n: int) -> None:
        for i in range(n):
            batch = buffer.sample(batch_size, beta=BETA)
            buffer.update_priorities(batch["indices"], pool[i % POOL])

    return work


def our_samples(items: int, batch_size: int) -> Work:
    buffer = our_buffer(items, prioritized=False)

    def work(n: int) -> None:
        for _ in range(n):
            buffer.sample(batch_size)

    return work


def our_adds(items: int) -> Work:
    buffer, one = our_buffer(items, prioritized=False), transitions(1)

    def work(n: int) -> None:
        for _ in range(n):
            buffer.add_batch(**one)

    return work


def cpprb_buffer(items: int, *, prioritized: bool) -> Any:
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    fields = {
        "obs": {"shape": OBS_DIM, "dtype": np.float32},
        "act": {"dtype": np.int64},
        "rew": {"dtype": np.float32},
        "next_obs": {"shape": OBS_DIM, "dtype": np.float32},
        "done": {"dtype": np.float32},
    }
    buffer = PrioritizedReplayBuffer(items, fields, alpha=ALPHA, eps=EPS) if prioritized else ReplayBuffer(items, fields)
    buffer.add(**cpprb_names(transitions(items)))
    if prioritized:
        buffer.update_priorities(np.arange(items), priorities(items))
    return buffer


def cpprb_names(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"obs": part["obs"], "act": part["actions"], "rew": part["rewards"], "next_obs": part["next_obs"], "done": part["dones"]}


def cpprb_pairs(items: int, batch_size: int) -> Work:
    buffer, pool = cpprb_buffer(items, prioritized=True), list(priorities(POOL * batch_size).reshape(POOL, -1))

    def work(n: int) -> None:
        for i in range(n):
            batch = buffer.sample(batch_size, beta=BETA)
            buffer.update_priorities(batch["indexes"], pool[i % POOL])

    return work


def cpprb_samples(items: int, batch_size: int) -> Work:
    buffer = cpprb_buffer(items, prioritized=False)

    def work(n: int) -> None:
        for _ in range(n):
            buffer.sample(batch_size)

    return work


def cpprb_adds(items: int) -> Work:
    buffer, one = cpprb_buffer(items, prioritized=False), cpprb_names({name: value[0] for name, value in transitions(1).items()})

    def work(n: int) -> None:
        for _ in range(n):
            buffer.add(**one)

    return work


def tianshou_buffer(items: int, *, prioritized: bool) -> Any:
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    buffer = PrioritizedReplayBuffer(items, alpha=ALPHA, beta=BETA) if prioritized else ReplayBuffer(items)
    part = transitions(items)
    done = part["dones"].astype(bool)
    never = np.zeros(items, bool)
    fields = {"obs": part["obs"], "act": part["actions"], "rew": part["rewards"], "obs_next": part["next_obs"]}
    buffer.set_batch(Batch(**fields, terminated=done, truncated=never, done=done))  # a million single adds would take minutes
    buffer._size = items
    if prioritized:
        buffer.update_weight(np.arange(items), priorities(items))
    return buffer


def tianshou_pairs(items: int, batch_size: int) -> Work:
    buffer, pool = tianshou_buffer(items, prioritized=True), list(priorities(POOL * batch_size).reshape(POOL, -1))

    def work(n: int) -> None:
        for i in range(n):
            _, indices = buffer.sample(batch_size)
            buffer.update_weight(indices, pool[i % POOL])

    return work


def tianshou_samples(items: int, batch_size: int) -> Work:
    buffer = tianshou_buffer(items, prioritized=False)

    def work(n: int) -> None:
        for _ in range(n):
            buffer.sample(batch_size)

    return work


def against_peers(items: int) -> dict[str, tuple[str, dict[str, Callable[[], Work]]]]:
    cases: dict[str, tuple[str, dict[str, Callable[[], Work]]]] = {}
    for batch_size in (32, 256):
        cases[f"prioritized sample + update, {items:,} items, batch {batch_size}"] = (
            "pairs/s",
            {
                "ours": lambda b=batch_size: our_pairs(items, b),
                "cpprb": lambda b=batch_size: cpprb_pairs(items, b),
                "tianshou": lambda b=batch_size: tianshou_pairs(items, b),
            },
        )
    cases[f"uniform sample, {items:,} items, batch 64"] = (
        "samples/s",
        {
            "ours": lambda: our_samples(items, 64),
            "cpprb": lambda: cpprb_samples(items, 64),
            "tianshou": lambda: tianshou_samples(items, 64),
        },
    )
    cases["add one transition"] = ("adds/s", {"ours": lambda: our_adds(10_000), "cpprb": lambda: cpprb_adds(10_000)})
    return cases


def print_growth(result: Result) -> None:
    """Time per call at each size, and against the smallest."""
    names = list(result.rates)
    for name in names:
        growth = statistics.median(small / large for small, large in zip(result.rates[names[0]], result.rates[name], strict=True))
        print(f"  {name:<20} {1e6 / result.median(name):>8.1f} µs   {growth:.2f}x the time of {names[0]}", flush=True)


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--items", type=int, default=1_000_000, help="in the buffers that are compared (default: %(default)s)")
    parser.add_argument("--largest", type=int, default=7, help="the largest buffer has 10^this items (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    results = []
    for case, (unit, makers) in against_peers(options.items).items():
        if options.only in case:
            present = {name: make for name, make in makers.items() if name == "ours" or find_spec(name) is not None}
            contenders = {name: repeat_for(make(), options.seconds) for name, make in present.items()}
            results.append(compare(case, unit, contenders, rounds=options.rounds))
    by_size: dict[str, Callable[[int, int], Work]] = {
        "uniform sample by size, batch 32": our_samples,
        "prioritized sample + update by size, batch 32": our_pairs,
    }
    for case, make in by_size.items():
        if options.only in case:
            sizes = [10**k for k in range(4, options.largest + 1)]
            contenders = {f"{items:,} items": repeat_for(make(items, 32), options.seconds) for items in sizes}
            results.append(compare(case, "calls/s", contenders, rounds=options.rounds))
            print_growth(results[-1])
    save(options.json, options, results)


if __name__ == "__main__":
    main()
