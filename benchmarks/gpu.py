"""What a GPU does with it, on one machine in one run: graphs against eager code, and both against Stable-Baselines3.

    equality   every value-based row learns for 100 updates, once as one CUDA graph per update and once eagerly, from the same seeds
    masked     the same with action masks, and short runs on a task that fails on a forbidden action
    rollouts   the same of PPO's and PQN's gradient steps, on minibatches that do not fill their tensors
    learner    updates/s: sample, loss, gradient, Adam, priorities, replay on the device
    sampler    sample + update pairs/s of the prioritized sampler alone
    loop       environment steps/s of DQN on CartPole with an update every step, whole loop
    profile    kernels of one update's graph by time, and what the host does in the loop
    solve      CartPole with 64 native environments: seconds until the greedy policy holds the pole (mean return of 475 over 20 episodes)

`--device cpu` runs all of it without capture, to try it where there is no GPU. What is done when `--budget` seconds are over is written,
the rest is left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks import throughput
from benchmarks.common import Result, arguments, compare, machine, prepare, repeat_for

RECURRENT = ("drqn", "r2d2")
SUPPORT = {"v_min": 0.0, "v_max": 100.0}
SEQUENCES = {"features_dim": 16, "recurrent_hidden_size": 16, "sequence_length": 8}
ROWS: dict[str, dict[str, Any]] = {
    "dqn": {},
    "double_dqn": {"tau": 0.5},
    "dueling_dqn": {},
    "noisy_dqn": {},
    "prioritized_dqn": {},
    "n_step_dqn": {},
    "c51_dqn": SUPPORT,
    "qr_dqn": {},
    "iqn": {},
    "rainbow_dqn": SUPPORT,
    "drqn": SEQUENCES,
    "r2d2": {**SEQUENCES, "burn_in": 2, "n_step": 2, "value_rescaling": True},
}


MASKED: dict[str, dict[str, Any]] = {
    "dqn": {},
    "double_dqn": {},
    "munchausen_dqn": {},
    "munchausen_iqn": {},
    "rainbow_dqn": {"v_min": -10.0, "v_max": 10.0},
    "r2d2": ROWS["r2d2"],
}


def config_of(algo: str, device: str, **changes: Any) -> Any:
    from rl_training.experiment.config import TrainConfig

    kwargs: dict[str, Any] = {"hidden_sizes": [32, 32], "batch_size": 32, "buffer_capacity": 2_000, "target_update_interval": 40}
    kwargs |= {"learning_starts": 100, "train_frequency": 1, **changes.pop("algo_kwargs", {})}
    values = {"env_id": "CartPole-v1", "seed": 3, "total_timesteps": 400, "output_dir": "unused", "num_envs": 4, "device": device}
    return TrainConfig(algo=algo, algo_kwargs=kwargs, **{**values, **changes})


def parts_of(algo: str, device: str, *, steps: int = 200, env: Callable[[], Any] | None = None, **changes: Any) -> Any:
    """The row's parts as its trainer builds them, with some random steps in the replay. env: in place of CartPole."""
    from rl_training.algorithms.r2d2 import R2D2
    from rl_training.runtime import dqn_trainer, drqn_trainer
    from rl_training.runtime.actor import Actor
    from rl_training.runtime.behaviour import EpsilonGreedy
    from rl_training.runtime.trainer_setup import prepare as set_up

    setup = set_up(config_of(algo, device, **changes), env)
    if algo in RECURRENT:
        parts = drqn_trainer.build_parts(setup, R2D2) if algo == "r2d2" else drqn_trainer.build_parts(setup)
    else:
        parts = dqn_trainer.build_parts(setup)
    random = EpsilonGreedy(lambda env_steps: 1.0, num_actions=setup.spaces["num_actions"], learning_starts=0, seed=0)
    actor = Actor(setup.envs, parts.network, parts.feed, behaviour=random, device=setup.device, seed=0)
    for step in range(steps):
        actor.step(step)
    parts.feed.flush()
    setup.envs.close()
    return parts


def updates_of(parts: Any, batch_size: int, beta: Any, device: torch.device) -> tuple[Any, Any]:
    """(graphed, eager) updates of these parts; use one of them."""
    from rl_training.runtime.accelerate import accelerate_learner
    from rl_training.runtime.off_policy import SampledUpdates
    from rl_training.speed.graphs import GraphedUpdates

    accelerate_learner(parts.learner)
    graphed = GraphedUpdates(parts.learner, parts.replay, batch_size, beta, device)
    return graphed, SampledUpdates(parts.learner, parts.replay, batch_size, beta)


def is_prioritized(algo: str) -> bool:
    return algo in ("prioritized_dqn", "rainbow_dqn", "r2d2")


def relative_difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """max |a − b| / (|b| + 1e-3 · max |b|): small parameters are not measured against their own size."""
    mine, theirs = mine.double(), theirs.double()
    scale = theirs.abs() + 1e-3 * theirs.abs().max().clamp(min=1e-12)
    return float(((mine - theirs).abs() / scale).max())


def compared(one: Any, other: Any, batch_size: int, beta: Any, device: torch.device, *, updates: int = 100) -> dict[str, Any]:
    """`one` learns in graphs and `other` eagerly, from the same start: how far their parameters are apart afterwards."""
    graphed, eager = updates_of(one, batch_size, beta, device)[0], updates_of(other, batch_size, beta, device)[1]
    for step in range(1, updates + 1):
        mine, theirs = graphed(step), eager(step)
    loss = [float(result.metrics["loss"]) for result in (mine, theirs)]
    learned = [parts.learner.optimizer.parameters for parts in (one, other)]
    difference, bits = relative_difference(*learned), bool(torch.equal(*learned))
    target = float(mine.metrics["target_mean"])
    return {"difference": difference, "equal_bits": bits, "losses": loss, "target": target, "ok": difference < 1e-4}


def equality(
    device: torch.device, rows: dict[str, dict[str, Any]] | None = None, prepared: Callable[[Any], None] | None = None, **how: Any
) -> dict[str, Any]:
    """The parameters after 100 updates as one graph each, against eager ones. `prepared` is called with each row's parts first."""
    found: dict[str, Any] = {}
    for algo, extra in (ROWS if rows is None else rows).items():
        try:
            one, other = (parts_of(algo, str(device), algo_kwargs=extra, **how) for _ in range(2))
            if prepared is not None:
                prepared(one)
                prepared(other)
            beta = (lambda step: 0.5) if is_prioritized(algo) else None
            found[algo] = compared(one, other, 32, beta, device)
        except Exception as error:
            found[algo] = {"ok": False, "error": repr(error)[:300], "where": traceback.format_exc()[-800:]}
        print(f"  {algo:<18} {found[algo]}", flush=True)
    return found


def masked(device: torch.device) -> dict[str, Any]:
    """Replay of a task whose last action is never allowed, and networks that value it far above the others: unmasked, targets would be
    above 5, the task's best return. Then whole runs, as `compile` makes them here: the task raises on a forbidden action."""
    from rl_training.runtime.workflows import train
    from tests.masked_tasks import guarded

    def tempted(parts: Any) -> None:
        for network in (parts.learner.q_network, parts.learner.target_network):
            last = network.head.advantage.layers[-1]
            bias = last.bias if last.bias is not None else last.bias_mu
            atoms = bias.numel() // 4  # one after the other for each action; of a categorical head the last is worth most
            with torch.no_grad():
                bias.view(4, -1)[3] += torch.linspace(0, 50, atoms, device=bias.device) if atoms > 1 else 50

    found = equality(device, MASKED, tempted, env=guarded)
    for algo, row in found.items():
        row["ok"] = row["ok"] and row["target"] < 5
        with tempfile.TemporaryDirectory() as folder:
            changes = {"env_id": "callable:guarded", "output_dir": folder, "compile": device.type == "cuda", "eval_episodes": 8}
            row["return"] = train(config_of(algo, str(device), algo_kwargs=MASKED[algo], **changes), env=guarded).metrics[
                "eval_return_mean"
            ]
        print(f"  {algo:<18} ok: {row['ok']}, a run's return {row['return']:.2f}", flush=True)
    if not all(row["ok"] for row in found.values()):
        raise ValueError(f"not equal, or not masked: {[algo for algo, row in found.items() if not row['ok']]}")
    return found


def rollouts(device: torch.device) -> dict[str, Any]:
    found = {algo: rollout_equality(algo, device) for algo in ("ppo", "pqn")}
    for algo, row in found.items():
        print(f"  {algo:<18} {row}", flush=True)
    if not all(row["ok"] for row in found.values()):
        raise ValueError("a graphed gradient step is not the eager one")
    return found


def rollout_equality(algo: str, device: torch.device) -> dict[str, Any]:
    """100 updates of a learner from rollouts, on minibatches of 30 steps in tensors of 32 rows: some of them do not count."""
    from rl_training.algorithms import PPO, PQN
    from rl_training.models import MLPQNetwork
    from rl_training.models.actor_critic import MLPActorCritic
    from rl_training.models.distributions import Categorical
    from rl_training.speed.rollout_graphs import use_graphed_steps

    learners: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        network: Any = MLPActorCritic(4, Categorical(2), (32, 32)) if algo == "ppo" else MLPQNetwork(4, 2, (32, 32), layer_norm=True)
        network = network.to(device)
        learners.append((PPO if algo == "ppo" else PQN)(network, 1e-3, 0.99, minibatch_size=32))
    use_graphed_steps(learners[0], 32, device)
    for seed in range(100):
        rng = torch.Generator().manual_seed(seed)
        batch = {name: torch.randn(30, generator=rng) for name in ("returns", "values", "advantages", "log_probs")}
        batch |= {"obs": torch.randn(30, 4, generator=rng), "actions": torch.randint(2, (30,), generator=rng)}
        on_device = {name: value.to(device) for name, value in batch.items()}
        results = [each.update(on_device, global_step=seed) for each in learners]
    mine, theirs = (each.optimizer.parameters for each in learners)
    difference = relative_difference(mine, theirs)
    losses = [float(result.metrics["loss"]) for result in results]
    return {"difference": difference, "equal_bits": bool(torch.equal(mine, theirs)), "losses": losses, "ok": difference < 1e-3}


def synchronized(update: Callable[[int], Any], device: torch.device) -> Callable[[int], None]:
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            update(step)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return work


def mlp_parts(device: str, rows: int) -> Any:
    parts = parts_of(
        "dqn", device, steps=2, algo_kwargs={"hidden_sizes": [128, 128], "buffer_capacity": rows, "target_update_interval": 500}
    )
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, 4), dtype=np.float32)
    fields = {"obs": obs[:-1], "next_obs": obs[1:], "actions": rng.integers(2, size=rows), "rewards": np.ones(rows, np.float32)}
    parts.replay.add_batch(**fields, dones=np.zeros(rows, np.float32), discounts=np.full(rows, 0.99, np.float32))
    return parts


def lstm_parts(device: str, hidden: int, length: int, batch: int, chunks: int) -> Any:
    kwargs = {"hidden_sizes": [], "features_dim": hidden, "recurrent_hidden_size": hidden, "sequence_length": length, "batch_size": batch}
    kwargs |= {"buffer_capacity": chunks * length, "n_step": 5, "target_update_interval": 500}
    parts = parts_of("r2d2", device, steps=0, num_envs=16, algo_kwargs=kwargs)
    from rl_training.types import Step

    rng = np.random.default_rng(0)
    state = tuple(np.zeros((1, 16, hidden), np.float32) for _ in range(2))
    for t in range(chunks // 16 * length):
        obs = rng.standard_normal((2, 16, 4), dtype=np.float32)
        no = np.zeros(16, bool)
        fields = {"obs": obs[0], "next_obs": obs[1], "actions": rng.integers(2, size=16), "rewards": np.ones(16, np.float32)}
        parts.feed.push(Step(**fields, terminated=no, truncated=no, episode_starts=no | (t == 0), initial_state=state))
    parts.feed.flush()
    return parts


def learner(options: Any, device: torch.device) -> list[Result]:
    """The issue's cases; `--device cpu` makes them small."""
    small = device.type == "cpu"
    rows = 10_000 if small else 1_000_000
    chunks = 64 if small else 1_024
    cases: dict[str, tuple[Callable[[], Any], int, Any]] = {
        f"DQN, MLP 128 × 128, batch 64, {rows:,} transitions": (lambda: mlp_parts(str(device), rows), 64, None),
        "R2D2, LSTM 512, 40 steps, batch 64": (lambda: lstm_parts(str(device), 32 if small else 512, 40, 64, chunks), 64, lambda step: 0.5),
        "R2D2, LSTM 128, 40 steps, batch 32": (lambda: lstm_parts(str(device), 32 if small else 128, 40, 32, chunks), 32, lambda step: 0.5),
    }
    results = []
    for case, (make, batch, beta) in cases.items():
        if options.only not in case:
            continue
        work = {
            "ours, one graph": synchronized(updates_of(make(), batch, beta, device)[0], device),
            "ours, eager": synchronized(updates_of(make(), batch, beta, device)[1], device),
        }
        contenders = {name: repeat_for(each, options.seconds) for name, each in work.items()}
        again = synchronized(updates_of(make(), batch, beta, device)[0], device)
        torch.set_float32_matmul_precision("high")  # what a recurrent run has anyway: see runtime/trainer_setup.py
        contenders["ours, one graph, TF32"] = repeat_for(again, options.seconds)
        results.append(compare(case, "updates/s", contenders, rounds=options.rounds, ours="ours, one graph"))
    return results


def sampler(options: Any, device: torch.device) -> list[Result]:
    """Sample and write priorities back, nothing else, as one graph."""
    from rl_training.data.samplers import FlatSampler
    from rl_training.speed.graphs import Captured

    results = []
    for batch in (32, 256):
        work = {}
        for name, captured in (("ours, one graph", True), ("ours, eager", False)):
            capacity = 1 << (14 if device.type == "cpu" else 20)
            flat = FlatSampler(capacity, alpha=0.6, eps=1e-6, seed=0, device=device)
            flat.priorities.copy_(torch.rand(capacity, dtype=torch.float64))
            size = torch.tensor(capacity, device=device)
            fresh = torch.rand(batch, device=device)

            def pair(flat: FlatSampler = flat, size: Any = size, fresh: Any = fresh, batch: int = batch, capacity: int = capacity) -> None:
                indices, _ = flat.sample(batch, size, 0.5)
                flat.update(indices, fresh, capacity)

            call = Captured(pair, device, [flat.generator]) if captured else pair
            work[name] = synchronized(lambda step, call=call: call(), device)
        contenders = {name: repeat_for(each, options.seconds) for name, each in work.items()}
        case = f"prioritized sampler, {capacity:,} items, batch {batch}"
        results.append(compare(case, "sample + update pairs/s", contenders, rounds=options.rounds, ours="ours, one graph"))
    return results


def loop(options: Any, device: torch.device) -> list[Result]:
    """DQN on CartPole, one environment, an update every step; and with 64 native environments, where Stable-Baselines3 has its own 64."""
    warm, steps = (600, 300) if device.type == "cpu" else (1_000, 3_000)
    hidden = (128, 128)
    work: dict[str, Callable[[int], object]] = {
        "ours, graphs": partial(
            throughput.train_ours, hidden=hidden, every=1, threads=1, device=str(device), compile=device.type == "cuda"
        ),
        "ours, eager": partial(throughput.train_ours, hidden=hidden, every=1, threads=1, device=str(device)),
    }
    try:
        import stable_baselines3  # noqa: F401

        work["stable-baselines3"] = partial(throughput.train_sb3, hidden=hidden, every=1, device=str(device))
    except ImportError as error:
        print(f"  no stable-baselines3: {error}")
    contenders = {name: throughput.timed(run, warm, warm + steps) for name, run in work.items()}
    case = f"DQN, CartPole, hidden {hidden}, an update every step"
    return [compare(case, "environment steps/s", contenders, rounds=options.rounds, ours="ours, graphs")]


def profile(device: torch.device) -> dict[str, Any]:
    """Where the time goes: kernels of one update's graph, and the host's part of the loop."""
    import cProfile
    import io
    import pstats

    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    found: dict[str, Any] = {}
    on_gpu = device.type == "cuda"
    made = {"DQN, MLP": (mlp_parts(str(device), 10_000), 64, None)}
    if on_gpu:
        made["R2D2, LSTM 512"] = (lstm_parts(str(device), 512, 40, 64, 64), 64, lambda step: 0.5)
    for name, (parts, batch, beta) in made.items():
        work = synchronized(updates_of(parts, batch, beta, device)[0], device)
        work(10)
        with watch(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
            work(20)
        sort = "cuda_time_total" if on_gpu else "cpu_time_total"
        found[name] = recorded.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=60)
        print(found[name], flush=True)
    text = io.StringIO()
    recorder = cProfile.Profile()
    recorder.enable()
    throughput.train_ours(3_000 if on_gpu else 700, hidden=(128, 128), every=1, threads=1, device=str(device), compile=on_gpu)
    recorder.disable()
    pstats.Stats(recorder, stream=text).strip_dirs().sort_stats("tottime").print_stats(28)
    found["loop"] = text.getvalue()
    print(found["loop"], flush=True)
    return found


def solve(device: torch.device) -> dict[str, Any]:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.workflows import train

    class UntilSolved(Callback):
        """Ends the run at the first evaluation that holds the pole, and notes when that was."""

        found: dict[str, Any]

        def on_start(self, run: Any) -> None:
            self.start, self.found = time.perf_counter(), {"curve": []}

        def on_eval(self, run: Any, metrics: Any) -> None:
            self.found["curve"].append(
                [run.clock.env_steps, round(metrics["eval_return_mean"], 1), round(time.perf_counter() - self.start, 2)]
            )
            if metrics["eval_return_mean"] >= 475:
                run.stop("solved")

    found = []
    for seed in (1, 2, 3):
        watch = UntilSolved()
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(
                "dqn",
                str(device),
                seed=seed,
                num_envs=64,
                vectorization="native",
                total_timesteps=100_000,
                output_dir=folder,
                eval_interval=2_560,
                eval_episodes=20,
                log_interval=0,
                checkpoint_interval=0,
                compile=device.type == "cuda",
                algo_kwargs=SOLVING,
            )
            result = train(config, callbacks=[watch])
        last = watch.found["curve"][-1]
        found.append(
            {
                "seed": seed,
                "solved": last[1] >= 475,
                "env_steps": last[0],
                "seconds": last[2],
                "updates": result.metrics["num_updates"],
                **watch.found,
            }
        )
        print(f"  {found[-1]}", flush=True)
        if device.type == "cpu":
            break
    return {"runs": found, "settings": SOLVING}


SOLVING: dict[str, Any] = {  # as configs/dqn/cartpole.yaml, over twice the steps
    "hidden_sizes": [256, 256],
    "batch_size": 64,
    "learning_rate": 2.3e-3,
    "buffer_capacity": 100_000,
    "learning_starts": 1_000,
    "train_frequency": 256,
    "gradient_steps": 128,
    "target_update_interval": 256,
    "max_grad_norm": 10.0,
    "epsilon_end": 0.04,
    "exploration_fraction": 0.08,
}


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no further part is begun (default: %(default)s)")
    parser.add_argument(
        "--parts",
        default="equality,masked,rollouts,learner,sampler,loop,solve,profile",
        help="which, by commas (default: %(default)s)",
    )
    options = parser.parse_args()
    prepare(options)
    gym.register(id=throughput.ENV_ID, entry_point=throughput.TimedCartPole, max_episode_steps=500)
    device = torch.device(options.device)
    began = time.perf_counter()
    record: dict[str, Any] = {
        "machine": machine(options.threads),
        "options": {k: v for k, v in vars(options).items() if k != "json"},
        "results": [],
    }
    known: dict[str, Callable[[], Any]] = {
        "equality": lambda: equality(device),
        "masked": lambda: masked(device),
        "rollouts": lambda: rollouts(device),
        "learner": lambda: learner(options, device),
        "sampler": lambda: sampler(options, device),
        "loop": lambda: loop(options, device),
        "solve": lambda: solve(device),
        "profile": lambda: profile(device),
    }
    play_parts(options, record, known, until=began + options.budget)


def play_parts(options: Any, record: dict[str, Any], known: dict[str, Callable[[], Any]], *, until: float) -> None:
    """The parts asked for, into the record, which is written as each ends; none is begun after `until`. Exit code 1 if one failed."""
    for name in options.parts.split(","):
        if time.perf_counter() > until:
            print(f"{name}: left out, the {options.budget:.0f} s are over")
            record.setdefault("left_out", []).append(name)
            continue
        print(f"{name}:", flush=True)
        start = time.perf_counter()
        try:
            found = known[name]()
            if isinstance(found, list):
                record["results"] += [result.record() for result in found]
            else:
                record[name] = found
        except Exception:  # one part that fails does not cost the others
            traceback.print_exc()
            record.setdefault("failed", {})[name] = traceback.format_exc()[-1500:]
        record.setdefault("seconds", {})[name] = round(time.perf_counter() - start, 1)
        if options.json is not None:
            Path(options.json).parent.mkdir(parents=True, exist_ok=True)
            Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if record.get("failed"):
        sys.exit(1)


if __name__ == "__main__":
    main()
