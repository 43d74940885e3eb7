"""What each piece of `src/rl_training/speed/` is worth: the same work with it and without it, all the rest in place.

The learner's cases are those of `benchmarks.learner` (sample, loss, gradient, Adam, priorities), the whole loop's those of
`benchmarks.throughput`, MinAtar's those of `benchmarks.minatar_cpu`, and PQN's that of `benchmarks.pqn_cpu`. With `--device cuda` the
pieces of a GPU: CUDA graphs and the streams inside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import gymnasium as gym
import torch

from benchmarks import gpu, learner, minatar_cpu, pqn_cpu, throughput
from benchmarks.before_after import HERE, Served
from benchmarks.common import Contender, Result, arguments, compare, prepare, repeat_for, save
from benchmarks.learner_peers import ACTIONS, BATCH, OBS_DIM, ROWS, Work, data

HIDDEN = learner.HIDDEN
Makes = Callable[[bool], Work]
"""With the piece or without → the work."""


def sampled(made: Any, *, prioritized: bool = False, compiled: bool = False, packed: bool = False) -> Work:
    """A learner and its replay; compiled from the user's cache, or into it."""
    from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer
    from rl_training.runtime.off_policy import SampledUpdates
    from rl_training.speed.ahead_of_time import compile_learner

    replay: Any = PrioritizedReplayBuffer(ROWS, (OBS_DIM,)) if prioritized else ReplayBuffer(ROWS, (OBS_DIM,))
    replay.add_batch(**data()._asdict())
    updates = SampledUpdates(made, replay, BATCH, (lambda step: 0.4) if prioritized else None)
    updates.packed = packed
    if compiled:
        compile_learner(made, updates.sample(0), replay.unpack if packed else dict)
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            updates(step)

    return work


def dqn(*, fast: bool = True) -> Any:
    from rl_training.algorithms import DQN
    from rl_training.models import MLPQNetwork
    from rl_training.runtime.accelerate import accelerate_learner

    made = DQN(MLPQNetwork(OBS_DIM, ACTIONS, HIDDEN), max_grad_norm=10.0, **learner.LEARNER)
    if fast:
        accelerate_learner(made)
    return made


def distributional(kind: str, *, numba: bool) -> Any:
    """A learner with all of `speed/` but, if so asked, numba's loops."""
    from rl_training.algorithms import C51DQN, IQN, QRDQN
    from rl_training.models import MLPC51QNetwork, MLPIQNetwork, MLPQRQNetwork
    from rl_training.runtime.accelerate import accelerate_learner
    from rl_training.speed.numba_rules import plain_rule

    made: Any
    if kind == "C51, 51 atoms":
        made = C51DQN(MLPC51QNetwork(OBS_DIM, ACTIONS, 51, hidden_sizes=HIDDEN, **learner.SUPPORT), **learner.LEARNER)
    elif kind == "IQN, 64 and 64 samples":
        made = IQN(MLPIQNetwork(OBS_DIM, ACTIONS, HIDDEN), **learner.LEARNER)
    else:
        made = QRDQN(MLPQRQNetwork(OBS_DIM, ACTIONS, 200, HIDDEN), **learner.LEARNER)
    accelerate_learner(made)
    if not numba:
        made.rule = plain_rule(made.rule)
    return made


def ppo(by_hand: bool) -> Work:
    from rl_training.algorithms import PPO
    from rl_training.models import Categorical, MLPActorCritic
    from rl_training.runtime.accelerate import accelerate_learner

    made = PPO(MLPActorCritic(OBS_DIM, Categorical(ACTIONS), HIDDEN), 1e-3, 0.99)
    if by_hand:
        accelerate_learner(made)
    g = torch.Generator().manual_seed(0)
    batch = {"obs": torch.randn(BATCH, OBS_DIM, generator=g), "actions": torch.randint(ACTIONS, (BATCH,), generator=g)}
    batch |= {name: torch.randn(BATCH, generator=g) for name in ("log_probs", "values", "advantages", "returns")}

    def work(n: int) -> None:
        for _ in range(n):
            made.update(batch, global_step=0)

    return work


def prioritized(numba: bool) -> Work:
    with mock.patch("rl_training.data.samplers.speed_is_on", lambda: numba):
        return sampled(dqn(), prioritized=True)


LEARNER: dict[str, Makes] = {
    "hand gradients: DQN": lambda on: sampled(dqn(fast=on)),
    "hand gradients: PPO": ppo,
    **{
        f"numba loops: {kind}": partial(lambda kind, on: sampled(distributional(kind, numba=on)), kind)
        for kind in ("C51, 51 atoms", "QR-DQN, 200 quantiles", "IQN, 64 and 64 samples")
    },
    "numba sum tree: prioritized DQN": prioritized,
    "compiled step: DQN": lambda on: sampled(dqn(), compiled=on, packed=on),
    "packed rows in a compiled step: DQN": lambda on: sampled(dqn(), compiled=True, packed=on),
}


@contextmanager
def without(piece: str) -> Iterator[None]:
    """Inside, a run leaves this piece away."""
    nothing: Any = lambda *_, **__: None  # noqa: E731
    patches = {
        "NumPy acting pass": mock.patch("rl_training.runtime.value_based.accelerate_acting", nothing),
        "hand gradients": mock.patch("rl_training.runtime.accelerate.accelerate_learner", nothing),
        "patches in acting": mock.patch("rl_training.speed.numpy_pass.has_patches", nothing),
        "patches in the gradient": mock.patch("rl_training.speed.tapes.has_patches", nothing),
        "normed layers over kept buffers": mock.patch("rl_training.speed.normed_stack.is_normed_stack", nothing),
        "all of speed/": mock.patch.dict("os.environ", RL_TRAINING_SPEED="0"),
    }
    with patches[piece]:
        yield


def loop(piece: str, on: bool, *, every: int, first: int, last: int, threads: int) -> Contender:
    train = partial(throughput.train_ours, hidden=HIDDEN, every=every, threads=threads)
    if piece == "compiled step":
        return throughput.timed(partial(train, compile=on), first, last)
    return with_or_without(piece, on, throughput.timed(train, first, last))


def minatar_loop(piece: str, on: bool, *, first: int, last: int, threads: int) -> Contender:
    train = partial(minatar_cpu.train_ours, threads=threads)
    return with_or_without(piece, on, throughput.timed(train, first, last, env=minatar_cpu.TimedGame))


def pqn_loop(piece: str, on: bool, *, threads: int) -> Contender:
    return with_or_without(piece, on, pqn_cpu.timed(partial(pqn_cpu.train_ours, threads=threads), warm=1, rollouts=4))


def with_or_without(piece: str, on: bool, measure: Contender) -> Contender:
    def measure_without() -> float:
        with without(piece):
            return measure()

    return measure if on else measure_without


def kept_memory(options: Any) -> Result:
    """How memory is kept is a process's own and is not taken back: each contender is one."""
    leave_out = "from rl_training.speed import allocator; allocator.keep_freed_memory = bool"
    served = {name: Served(HERE, "our_iqn", "eager", prelude) for name, prelude in (("ours", ""), ("without", leave_out))}
    try:
        contenders = {name: partial(each.rate, options.seconds) for name, each in served.items()}
        return compare(KEPT_MEMORY, "updates/s", contenders, rounds=options.rounds)
    finally:
        for each in served.values():
            each.close()


KEPT_MEMORY = "kept memory: IQN, 64 and 64 samples, learner"

LOOP = {"NumPy acting pass": 4, "hand gradients": 1, "compiled step": 1, "all of speed/": 1}
"""Piece → environment steps from one update to the next: the best case of each."""

MINATAR = ("patches in acting", "patches in the gradient", "all of speed/")
PQN = ("normed layers over kept buffers", "all of speed/")


def on_cuda(algo: str, piece: str, on: bool) -> Work:
    """Updates of batch 64 on the GPU, as graphs with streams inside but for the piece."""
    from rl_training.algorithms.views import in_turn

    device = torch.device("cuda")
    parts = gpu.parts_of(algo, "cuda", algo_kwargs=gpu.ROWS[algo])
    graphed, eager = gpu.updates_of(parts, BATCH, (lambda step: 0.5) if gpu.is_prioritized(algo) else None, device)
    if piece == "streams" and not on:
        parts.learner.view.run_passes = in_turn
    return gpu.synchronized(eager if piece == "CUDA graphs" and not on else graphed, device)


CUDA = [("CUDA graphs", "dqn"), ("CUDA graphs", "r2d2"), ("streams", "dqn"), ("streams", "r2d2")]


def pair(case: str, unit: str, make: Callable[[bool], Contender], rounds: int) -> Result:
    return compare(case, unit, {"ours": make(True), "without": make(False)}, rounds=rounds)


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement of a learner (default: %(default)s)")
    parser.add_argument("--warm", type=int, default=1_000, help="steps of the loop before the clock starts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2_500, help="steps of the loop on the clock (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    prepare(options)
    results = []

    def timed_work(make: Makes, on: bool) -> Contender:
        torch.manual_seed(0)
        return repeat_for(make(on), options.seconds)

    def wanted(case: str) -> bool:
        return options.only in case and not (options.no_compile and "compiled step" in case)

    if options.device == "cuda":
        for piece, algo in CUDA:
            case = f"{piece}: {algo}, updates on a GPU"
            if wanted(case):
                make = partial(timed_work, partial(on_cuda, algo, piece))
                results.append(pair(case, "updates/s", make, options.rounds))
        save(options.json, options, results)
        return
    for name, makes in LEARNER.items():
        if wanted(name):
            results.append(pair(f"{name}, learner", "updates/s", partial(timed_work, makes), options.rounds))
    if wanted(KEPT_MEMORY):
        results.append(kept_memory(options))
    gym.register(id=throughput.ENV_ID, entry_point=throughput.TimedCartPole, max_episode_steps=500)
    first, last = options.warm, options.warm + options.steps
    for piece, every in LOOP.items():
        case = (
            f"{piece}: DQN, whole loop, an update every {every} steps" if every > 1 else f"{piece}: DQN, whole loop, an update every step"
        )
        if wanted(case):
            make = partial(loop, piece, every=every, first=first, last=last, threads=options.threads)
            results.append(pair(case, "environment steps/s", make, options.rounds))
    for piece in PQN:
        case = f"{piece}: PQN, whole loop"
        if wanted(case):
            results.append(pair(case, "environment steps/s", partial(pqn_loop, piece, threads=options.threads), options.rounds))
    gym.register(id=minatar_cpu.ENV_ID, entry_point=minatar_cpu.make_timed)
    for piece in MINATAR:
        case = f"{piece}: DQN, MinAtar Breakout, whole loop, an update every {minatar_cpu.EVERY} steps"
        if wanted(case):
            make = partial(minatar_loop, piece, first=first, last=last, threads=options.threads)
            results.append(pair(case, "environment steps/s", make, options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
