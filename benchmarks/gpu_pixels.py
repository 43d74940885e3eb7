"""Pixels on a GPU, on one machine in one run: frames stored once there, stacks gathered inside the CUDA graph of an update.

    equality   the frame store on the device, sampled by a CUDA graph, against a naive buffer of whole stacks under random operations
    updates    R2D2 on pixels with DQN's targets and with the paper's: 50 updates as one CUDA graph each, against eager ones
    learner    updates/s, replay on the device: sample, loss, gradient, Adam, priorities as one graph; by precision, with the torso compiled
    host       the same with replay in host memory, gathered there and copied over
    profile    kernels of one update's graph by time

`--device cpu` runs all of it small and without capture, to try it where there is no GPU. What is done when `--budget` seconds are over is
written, the rest is left out.
"""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.common import arguments, machine, prepare, repeat_for
from benchmarks.gpu import compared, play_parts, synchronized

FULL, SMALL = 84, 36  # pixels of a side
ENVS = 64
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Nature DQN, batch 32": ("dqn", {"torso": "nature", "batch_size": 32}),
    "Nature DQN, batch 32, prioritized, 3 steps": ("prioritized_dqn", {"torso": "nature", "batch_size": 32, "n_step": 3}),
    "Nature IQN, 8 levels, batch 32": ("iqn", {"torso": "nature", "batch_size": 32, "num_quantiles": 8, "num_target_quantiles": 8}),
    "Nature IQN, 64 levels, batch 32": ("iqn", {"torso": "nature", "batch_size": 32, "num_quantiles": 64, "num_target_quantiles": 64}),
    "IMPALA × 2, spectral norm, IQN, 8 levels, batch 256": (
        "iqn",
        {
            "torso": "impala",
            "torso_width": 2,
            "spectral_norm": True,
            "batch_size": 256,
            "num_quantiles": 8,
            "num_target_quantiles": 8,
            "dueling": True,
        },
    ),
    "R2D2, Nature, LSTM 512, 64 × (40 + 80)": (
        "r2d2",
        {"torso": "nature", "batch_size": 64, "sequence_length": 120, "burn_in": 40, "sequence_overlap": 80, "n_step": 5},
    ),
}
WAYS: dict[str, tuple[str, bool]] = {"tf32": ("tf32", False), "bf16": ("bf16", False), "bf16, torso compiled": ("bf16", True)}


class Noise(gym.Env[Any, int]):
    """Says only what its observations and actions are: the replay is filled with frames of noise."""

    def __init__(self, pixels: int = FULL) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (pixels, pixels), np.uint8)
        self.action_space = gym.spaces.Discrete(4)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


def parts_of(algo: str, kwargs: dict[str, Any], device: torch.device, *, steps: int, precision: str = "auto", replay: str = "auto") -> Any:
    """The row's parts as its trainer builds them, with `steps` steps of each of 64 environments in the replay."""
    from rl_training.algorithms.r2d2 import R2D2
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime import dqn_trainer, drqn_trainer
    from rl_training.runtime.trainer_setup import prepare as set_up
    from rl_training.types import Step

    small = device.type == "cpu"
    pixels = SMALL if small else FULL
    given = {**kwargs, "buffer_capacity": max(2 * steps * ENVS, 4_096), "target_update_interval": 8_000}
    if small and given["torso"] == "nature":
        given["torso"] = "minatar"
    values: dict[str, Any] = {"env_id": "callable:Noise", "seed": 3, "total_timesteps": 10**6, "output_dir": "unused", "num_envs": ENVS}
    values |= {"device": str(device), "precision": "auto" if small else precision, "replay_device": replay}
    values["env_kwargs"] = {"pixels": pixels, "frame_stack": 4}
    setup = set_up(TrainConfig(algo=algo, algo_kwargs=given, **values), Noise)
    setup.envs.close()
    parts = drqn_trainer.build_parts(setup, R2D2) if algo == "r2d2" else dqn_trainer.build_parts(setup)
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (8, ENVS, 4, pixels, pixels), np.uint8)
    state = tuple(part.expand(-1, ENVS, -1).cpu() for part in parts.network.initial_state(1))
    no = np.zeros(ENVS, bool)
    for t in range(steps):
        fields: dict[str, Any] = {"obs": pool[t % 8], "next_obs": pool[(t + 1) % 8], "actions": rng.integers(4, size=ENVS)}
        ends = rng.random(ENVS) < 1e-3
        fields |= {"rewards": rng.standard_normal(ENVS).astype(np.float32), "terminated": ends, "truncated": no}
        led: dict[str, Any] = {
            "previous_actions": rng.integers(4, size=ENVS),
            "previous_rewards": rng.standard_normal(ENVS).astype(np.float32),
        }
        parts.feed.push(Step(**fields, **led, episode_starts=no | (t == 0), initial_state=state))
    parts.feed.flush()
    return parts


def graphed(parts: Any, algo: str, batch: int, device: torch.device, *, compiled: bool) -> Callable[[int], Any]:
    from rl_training.runtime.accelerate import accelerate_updates
    from rl_training.runtime.off_policy import SampledUpdates

    beta = (lambda step: 0.5) if algo in ("prioritized_dqn", "r2d2") else None
    updates = SampledUpdates(parts.learner, parts.replay, batch, beta)
    if device.type == "cpu":
        from rl_training.speed.graphs import GraphedUpdates

        return GraphedUpdates(parts.learner, parts.replay, batch, beta, device)
    told = lambda what, text: print(f"    {what}: {text}", flush=True)  # noqa: E731
    return accelerate_updates(updates, device=device, compile=True, say=told, planned_updates=10**9 if compiled else 0)


def case_of(case: str, device: torch.device) -> tuple[str, dict[str, Any]]:
    """Its row and settings; on the CPU, where it is only tried, with small batches."""
    algo, kwargs = CASES[case]
    if device.type == "cuda":
        return algo, kwargs
    short = {"sequence_length": 12, "burn_in": 4, "sequence_overlap": 8} if algo == "r2d2" else {}
    return algo, {**kwargs, "batch_size": 4, **short}


def steps_of(algo: str, device: torch.device) -> int:
    return 40 if device.type == "cpu" else (1_000 if algo == "r2d2" else 800)


def equality(options: Any, device: torch.device) -> dict[str, Any]:
    from rl_training.data.sequences import ChunkLayout
    from rl_training.speed.graphs import Captured
    from tests.frame_worlds import BATCH, World, sequences_equal, transitions_equal

    def in_a_graph(buffer: Any) -> Callable[[], Any]:
        drawn: dict[str, Any] = {}
        call = Captured(lambda: drawn.update(buffer.sample(BATCH)), device, [buffer.generator] if device.type == "cuda" else [])

        def sample() -> Any:
            call()
            return drawn

        return sample

    found: dict[str, Any] = {"worlds": 0, "batches": 0, "seed": options.seed}
    rng = np.random.default_rng(options.seed)
    for index in range(options.worlds):
        num_envs, stack = (int(n) for n in rng.integers(1, 5, 2))
        world = World(num_envs, stack, int(rng.choice([1, 3, 12, 60])), bool(rng.integers(2)), int(rng.integers(2**20)))
        how: dict[str, Any] = {"prioritized": bool(rng.integers(2)), "device": str(device), "steps": 120, "sampling": in_a_graph}
        capacity = int(rng.integers(1, 80))
        if index % 2:
            burn_in = int(rng.integers(0, 4))
            length = burn_in + int(rng.integers(1, 7))
            layout = ChunkLayout(length, burn_in, int(rng.integers(0, length)))
            found["batches"] += sequences_equal(world, capacity, layout, **how)
        else:
            found["batches"] += transitions_equal(world, capacity, n_step=int(rng.integers(1, 5)), **how)
        found["worlds"] += 1
    print(f"  {found}", flush=True)
    return found


def updates(device: torch.device) -> dict[str, Any]:
    """What an update's graph computes is what eager code computes; convolutions are told to be deterministic, so to the bit."""
    torch.backends.cudnn.deterministic = True
    short = {"torso": "nature", "sequence_length": 24, "burn_in": 8, "sequence_overlap": 8, "previous_action_reward": True}
    plain = {"n_step": 1, "double_q": False, "dueling": False, "value_rescaling": False}
    paper = {"n_step": 5, "double_q": True, "dueling": True, "value_rescaling": True}
    found: dict[str, Any] = {}
    for name, targets in (("DQN's targets", plain), ("the paper's targets", paper)):
        one, other = (parts_of("r2d2", {**short, **targets, "batch_size": 8}, device, steps=60, precision="float32") for _ in range(2))
        found[name] = row = compared(one, other, 8, lambda step: 0.5, device, updates=50 if device.type == "cuda" else 3)
        if device.type == "cpu":  # the rate is a float32 tensor here and a float there, which Adam's first steps make large
            row["ok"] = math.isclose(*row["losses"], rel_tol=1e-5)
        print(f"  {name:<20} {found[name]}", flush=True)
    torch.backends.cudnn.deterministic = False
    if not all(row["ok"] for row in found.values()):
        raise ValueError("a graphed update is not the eager one")
    return found


def measured(options: Any, device: torch.device, case: str, way: str, replay: str = "auto") -> dict[str, Any]:
    algo, kwargs = case_of(case, device)
    precision, compiled = WAYS[way]
    parts = parts_of(algo, kwargs, device, steps=steps_of(algo, device), precision=precision, replay=replay)
    work = synchronized(graphed(parts, algo, kwargs["batch_size"], device, compiled=compiled), device)
    work(5 if device.type == "cuda" else 1)  # warm-up, capture
    contender = repeat_for(work, options.seconds)
    rates = [contender() for _ in range(options.rounds)]
    loss = float(parts.learner.last_outcome.metrics["loss"])
    held = parts.replay.bytes_per_transition
    found = {"rate": statistics.median(rates), "rates": rates, "loss": loss, "bytes_per_step": held, "held": len(parts.replay)}
    print(f"  {case:<54} {way:<22} {found['rate']:8.1f} updates/s   loss {loss:.4g}   {held:.0f} bytes a step", flush=True)
    return found


def learner(options: Any, device: torch.device, replay: str = "auto") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in CASES:
        for way in WAYS:
            if options.only not in case or (replay == "cpu" and way != "tf32"):
                continue
            if time.perf_counter() > options.until:
                found.setdefault("left_out", []).append(f"{case}, {way}")
                continue
            try:
                found.setdefault(case, {})[way] = measured(options, device, case, way, replay)
            except Exception as error:  # one case that fails does not cost the others
                traceback.print_exc()
                found.setdefault("failed", {})[f"{case}, {way}"] = repr(error)[:500]
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return found


def profile(options: Any, device: torch.device) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    found: dict[str, Any] = {}
    on_gpu = device.type == "cuda"
    for case in CASES:
        algo, kwargs = case_of(case, device)
        if options.only not in case or time.perf_counter() > options.until:
            continue
        parts = parts_of(algo, kwargs, device, steps=steps_of(algo, device), precision="tf32")
        work = synchronized(graphed(parts, algo, kwargs["batch_size"], device, compiled=False), device)
        work(8 if on_gpu else 1)
        with watch(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
            work(20 if on_gpu else 1)
        sort = "cuda_time_total" if on_gpu else "cpu_time_total"
        found[case] = recorded.key_averages().table(sort_by=sort, row_limit=25, max_name_column_width=70)
        print(f"{case}\n{found[case]}", flush=True)
    return found


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds after which nothing more is begun (default: %(default)s)")
    parser.add_argument(
        "--parts", default="equality,updates,learner,host,profile", help="which, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--worlds", type=int, default=60, help="of the equality part (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the equality part (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    device = torch.device(options.device)
    record: dict[str, Any] = {"machine": machine(options.threads), "options": {k: v for k, v in vars(options).items() if k != "json"}}
    options.until = time.perf_counter() + options.budget
    known: dict[str, Callable[[], Any]] = {
        "equality": lambda: equality(options, device),
        "updates": lambda: updates(device),
        "learner": lambda: learner(options, device),
        "host": lambda: learner(options, device, replay="cpu"),
        "profile": lambda: profile(options, device),
    }
    play_parts(options, record, known, until=options.until)


if __name__ == "__main__":
    main()
