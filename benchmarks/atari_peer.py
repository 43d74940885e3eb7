"""DQN on Atari's Pong beside Stable-Baselines3, whole training loops, in environment steps a second.

Both do the same work: preset `sb3` (its `AtariWrapper`: 84 × 84 in grey, frame skip 4, the last two frames pooled, four stacked), the
Nature network, batch 32, an update for every four environment steps, the target copied every 8,000, ε of 0.01 throughout
(Stable-Baselines3 asks no network where it acts at random), images stored as bytes and once (`optimize_memory_usage`).
Stable-Baselines3 runs as its users have it: `make_atari_env`, its games in one process (`dummy:8`) or in one each (`subproc:8`); its best
is what counts. `train_freq` counts steps of the whole vector there, so `gradient_steps` makes up for it. Ours runs its shipped config,
with Nature's padding, on ALE's own vector environment. Each measurement is a process of its own, and begins after `--warmup` updates.

    python -m benchmarks.atari_peer --rounds 2 --json atari_peer.json
    python -m benchmarks.atari_peer --device cpu --num-envs 8 --seconds 15 --replay 5000 --json benchmarks/results/atari_cpu.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from typing import Any

EVERY, TARGET, BATCH, EPSILON, RATE = 4, 8_000, 32, 0.01, 6.25e-5


def train_ours(options: argparse.Namespace, compile: str) -> dict[str, Any]:
    from benchmarks.atari_gpu import loop

    kwargs = {"train_frequency": EVERY, "target_update_interval": TARGET, "batch_size": BATCH, "learning_rate": RATE, "epsilon": EPSILON}
    kwargs["torso_padding"] = "valid"  # Nature's own 3,136 features, as Stable-Baselines3 has; the shipped config has Dopamine's 7,744
    given = argparse.Namespace(**vars(options), compile=compile, precision="auto")
    return loop("dqn", given, {"env_kwargs": {"preset": "sb3"}, "threads": options.threads, "algo_kwargs": kwargs})


def train_sb3(options: argparse.Namespace, vector: str, games: int) -> dict[str, Any]:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    class Measure(BaseCallback):
        """Begins its clock after `warmup` updates and ends the run `seconds` later."""

        began: float | None = None

        def _now(self) -> float:
            if options.device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter()

        def _on_step(self) -> bool:
            if self.began is None:
                if self.model._n_updates >= options.warmup:
                    self.began, self.from_steps, self.from_updates = self._now(), self.num_timesteps, self.model._n_updates
                return True
            if time.perf_counter() - self.began < options.seconds:
                return True
            taken = self._now() - self.began
            steps, updates = self.num_timesteps - self.from_steps, self.model._n_updates - self.from_updates
            self.figures = {"steps_per_second": steps / taken, "updates_per_second": updates / taken, "seconds": taken}
            return False

    torch.set_num_threads(options.threads)
    kind = SubprocVecEnv if vector == "subproc" else DummyVecEnv
    env_id = f"ale_py:ALE/{options.game.title()}-v5"  # the games' processes import nothing by themselves
    envs = make_atari_env(env_id, games, seed=1, vec_env_cls=kind, env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0})
    rounds = (EVERY, 1) if games < EVERY else (1, games // EVERY)
    model = DQN(
        "CnnPolicy",
        VecFrameStack(envs, 4),
        learning_rate=RATE,
        buffer_size=options.replay,
        learning_starts=options.learning_starts,
        batch_size=BATCH,
        train_freq=rounds[0],
        gradient_steps=rounds[1],
        target_update_interval=TARGET,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},  # which cannot be had with it
        device=options.device,
        seed=1,
    )
    measure, began = Measure(), time.perf_counter()
    model.learn(1_000_000_000, callback=measure)
    envs.close()
    return {**measure.figures, "seconds_before": (measure.began or began) - began}


def measure(one: str) -> float:
    """One contender in a process of its own."""
    run = subprocess.run([sys.executable, "-m", "benchmarks.atari_peer", *sys.argv[1:], "--one", one], capture_output=True, text=True)
    line = next((line for line in run.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise SystemExit(f"{one} failed:\n{run.stderr[-2_000:]}")
    found = json.loads(line.removeprefix("RESULT "))
    steps, updates, before = (found[name] for name in ("steps_per_second", "updates_per_second", "seconds_before"))
    print(f"{one:<16} {steps:>8,.0f} steps/s {updates:>8,.0f} updates/s {before:>5.0f} s before", flush=True)
    return float(found["steps_per_second"])


def games_of(name: str) -> tuple[str, int]:
    vector, _, games = name.partition(":")
    if vector not in ("dummy", "subproc") or not games.isdecimal() or (int(games) > EVERY and int(games) % EVERY):
        raise argparse.ArgumentTypeError(f"{name}: dummy:N or subproc:N is meant, with an N that is 1 or divides by {EVERY}")
    return vector, int(games)


def main() -> None:
    from benchmarks.common import COMPILED, arguments, compare, save

    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--game", default="pong")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--num-envs", type=int, default=64, help="of ours (default: %(default)s)")
    parser.add_argument("--sb3", help="its games, as dummy:1,dummy:8,subproc:8,subproc:16 (default on cuda) or as many as ours (on cpu)")
    parser.add_argument("--seconds", type=float, default=4.0, help="on the clock (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=100, help="updates before the clock starts (default: %(default)s)")
    parser.add_argument("--learning-starts", type=int, default=500)
    parser.add_argument("--replay", type=int, default=100_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what each process of its own is called with
    options = parser.parse_args()
    options.sb3 = options.sb3 or (
        "dummy:1,dummy:8,subproc:8,subproc:16" if options.device == "cuda" else f"dummy:{options.num_envs},subproc:{options.num_envs}"
    )
    try:
        peers = {name: games_of(name) for name in options.sb3.split(",")}
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    # a graph is what `auto` gives on CUDA; on the CPU it stands beside what is not compiled
    ours = {"ours": "auto" if options.device == "cuda" and not options.no_compile else "off"}
    if options.device == "cpu" and not options.no_compile:
        ours[COMPILED] = "on"
    if options.clock == "cpu":
        parser.error("--clock cpu would not count the games' processes")
    if options.one:
        found = train_ours(options, ours[options.one]) if options.one in ours else train_sb3(options, *peers[options.one])
        print("RESULT " + json.dumps(found), flush=True)
        return
    contenders = {name: partial(measure, name) for name in ours}
    contenders |= {f"Stable-Baselines3, {vector}, {games} games": partial(measure, name) for name, (vector, games) in peers.items()}
    case = f"DQN, {options.game.title()}, batch {BATCH}, an update every {EVERY} steps, {options.device}; ours: {options.num_envs} games"
    save(options.json, options, [compare(case, "environment steps/s", contenders, rounds=options.rounds)])


if __name__ == "__main__":
    main()
