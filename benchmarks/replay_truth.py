"""A training run on a real game beside a naive record of it: is its replay what the games showed, did it act on its own Q-values, and did
it learn what eager code learns?

python -m benchmarks.replay_truth --config qr_dqn/atari_pong --num-envs 8 --device cuda --json benchmarks/results/replay_truth.json

The run is the trainer's own, with its CUDA graphs, streams, staging and compiled torso. Written down beside it are the stacks acted on,
the actions, and what the games gave for them. At the end every transition of the replay, gathered as a batch is, must be one made of that
record by the textbook sum, and none may be missing. At some steps the network is asked again, eagerly, for the Q-values that acting just
used; at some updates a second learner with the same state makes the same update of the same batch, eagerly. What is found is added to FILE.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import torch

from benchmarks.common import machine
from rl_training.experiment.config import load_config
from rl_training.runtime import accelerate
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.dqn_trainer import build_learner, build_parts
from rl_training.runtime.run import RunOptions
from rl_training.runtime.trainer_setup import prepare
from rl_training.runtime.value_based import own_backup, train_value_based
from rl_training.speed.graphs import GraphedUpdates

ASK_EVERY = 50  # steps between two eager passes beside the one that acted
LEARN_EVERY = 100  # updates between two that are made again
PIECE = 4096  # transitions gathered at once
NEAR = 0.02  # of the largest Q-value, or of a vector's length: TF32 keeps ten bits, 1e-3, and a pass adds up a few such errors


class Record:
    """Each game's steps as plain lists."""

    def __init__(self, envs: Any, network: Any, device: torch.device) -> None:
        self._envs, self._network, self._device = envs, network, device
        self.games: list[list[tuple[int, int, float, int, bool, bool]]] = [[] for _ in range(envs.num_envs)]
        self.asked = self.explored = self.chosen = 0
        self.furthest = 0.0
        self._obs: Any = None
        self._begin, self._step = envs.begin, envs.step
        envs.begin, envs.step = self.begin, self.step

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Looks on where actions are chosen."""
        choose = EpsilonGreedy.choose

        def seen(behaviour: EpsilonGreedy, outputs: Any, masks: Any = None) -> Any:
            actions = choose(behaviour, outputs, masks)
            self.compare(outputs, actions)
            return actions

        with mock.patch.object(EpsilonGreedy, "choose", seen):
            yield

    def begin(self) -> Any:
        self._obs = self._begin()
        self._seen = [crc32(x.tobytes()) for x in self._obs]
        return self._obs

    def compare(self, outputs: Any, actions: Any) -> None:
        """Before the updates that wait are queued, the network is still the one that acted."""
        self.chosen += len(actions)
        self.explored += int((actions != outputs.argmax(-1)).sum())
        if self.asked * ASK_EVERY * len(actions) >= self.chosen:
            return
        self.asked += 1
        with torch.no_grad():
            again = self._network.q_values(torch.from_numpy(self._obs).to(self._device)).float()
        far = (again.cpu().numpy() - outputs) / np.abs(outputs).max().clip(1e-6)
        self.furthest = max(self.furthest, float(np.abs(far).max()))

    def step(self, actions: Any) -> Any:
        actions = actions.copy()
        step = self._step(actions)
        then = [crc32(x.tobytes()) for x in step.final_obs]
        for i, game in enumerate(self.games):
            if step.valid[i]:
                ends = bool(step.terminated[i]), bool(step.truncated[i])
                game.append((self._seen[i], int(actions[i]), float(step.rewards[i]), then[i], *ends))
        self._obs = step.obs
        self._seen = [crc32(x.tobytes()) if first else then[i] for i, (x, first) in enumerate(zip(step.obs, step.is_first, strict=True))]
        return step

    def transitions(self, n: int, gamma: float) -> Counter[tuple[int, int, int, int, int]]:
        """R = Σ γ^k r, over n steps or to the episode's end; γ^m or 0 before what follows. Windows still open at the end are left out."""
        found: Counter[tuple[int, int, int, int, int]] = Counter()
        for game in self.games:
            for t in range(len(game)):
                total, m = 0.0, 0
                for _, _, reward, _, terminated, truncated in game[t : t + n]:
                    total += gamma**m * reward
                    m += 1
                    if terminated or truncated:
                        break
                last = game[t + m - 1]
                if m == n or last[4] or last[5]:
                    found[key(game[t][0], game[t][1], total, last[3], 0.0 if last[4] else gamma**m)] += 1
        return found


class Learned:
    """Some updates made again by a learner of its own, eagerly: from the same state and the same batch."""

    def __init__(self, learner: Any, twin: Any) -> None:
        self._learner, self._twin = learner, twin
        self.count = 0
        self.furthest: dict[str, float] = {"gradient": 0.0, "step": 0.0, "priorities": 0.0}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The batch of a captured update lies in the graph's memory; kept by name, it is still there when the update is over."""
        update, sample = GraphedUpdates.__call__, GraphedUpdates._sample

        def remembered(updates: Any) -> Any:
            updates.batch_seen = sample(updates)
            return dict(updates.batch_seen)

        def beside(updates: Any, global_step: int) -> Any:
            if updates.count % LEARN_EVERY or updates.count < LEARN_EVERY:
                return update(updates, global_step)
            learner, twin = self._learner, self._twin
            twin.load_state_dict(learner.state_dict())
            before, mean = learner._flat.clone(), learner.optimizer.mean.clone()
            with mock.patch.object(learner, "sync_target_if_due"):
                result = update(updates, global_step)
            batch = {name: value.clone() for name, value in updates.batch_seen.items()}
            outcome = twin.eager_step(batch, learner.current_learning_rate(global_step))
            beta = learner.optimizer.betas[0]
            self._compare("gradient", learner.optimizer.mean - beta * mean, twin.optimizer.mean - beta * mean)
            self._compare("step", learner._flat - before, twin._flat - before)
            self._compare("priorities", learner.last_priorities, outcome.priorities)
            self.count += 1
            learner.sync_target_if_due(global_step)
            return result

        with mock.patch.object(GraphedUpdates, "_sample", remembered), mock.patch.object(GraphedUpdates, "__call__", beside):
            yield

    def _compare(self, what: str, ours: torch.Tensor, eager: torch.Tensor) -> None:
        far = float((ours - eager).norm() / eager.norm().clamp_min(1e-30))
        self.furthest[what] = max(self.furthest[what], far)


def key(obs: int, action: int, reward: float, next_obs: int, discount: float) -> tuple[int, int, int, int, int]:
    return obs, action, round(reward * 1e4), next_obs, round(discount * 1e4)


def held(replay: Any) -> Counter[tuple[int, int, int, int, int]]:
    """Everything in the replay, gathered as a batch is, a piece at a time."""
    found: Counter[tuple[int, int, int, int, int]] = Counter()
    ring = replay._ring
    for slots in np.array_split(ring.live_slots(), max(1, len(replay) // PIECE)):
        batch: dict[str, Any] = {}
        ring.storage.gather(slots if ring.storage.on_cpu else torch.as_tensor(slots, device=replay.device), batch)
        rows = {name: value.cpu().numpy() for name, value in replay._whole(batch).items()}
        for i in range(len(slots)):
            obs, then = (crc32(rows[name][i].tobytes()) for name in ("obs", "next_obs"))
            found[key(obs, int(rows["actions"][i]), float(rows["rewards"][i]), then, float(rows["discounts"][i]))] += 1
    return found


def compared(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """One run, and what was found of it."""
    given = load_config(options.config)
    kwargs: dict[str, Any] = {
        **given.algo_kwargs,
        "learning_starts": options.steps // 20,
        "buffer_capacity": 2 * options.steps,  # nothing leaves
        "epsilon": {"schedule": "piecewise", "points": [[options.steps // 20, 1.0], [options.steps // 3, 0.05]]},
    }
    quiet = {"eval_interval": 0, "eval_episodes": 1, "eval_max_steps": 10, "checkpoint_interval": 0, "checkpoint_replay": False}
    asked = {"total_timesteps": options.steps, "num_envs": options.num_envs, "device": options.device}
    config = given.replace(output_dir=Path(folder), algo_kwargs=kwargs, **asked, **quiet)
    setup = prepare(config, None)
    parts = build_parts(setup)
    settings: Any = config.settings
    record = Record(setup.envs, parts.network, setup.device)
    learned = Learned(parts.learner, build_learner(setup, settings, copy.deepcopy(parts.network), None, own_backup(settings)))
    began = time.perf_counter()
    with record.choosing(), learned.watching(), mock.patch.object(accelerate, "BREAK_EVEN_UPDATES", 1):
        done = train_value_based(setup, RunOptions(), parts)
    took = time.perf_counter() - began
    ours, expected = held(parts.replay), record.transitions(settings.n_step, settings.gamma)
    return {
        "machine": machine(torch.get_num_threads()),
        "config": options.config,
        "device": options.device,
        "num_envs": options.num_envs,
        "steps": sum(map(len, record.games)),
        "episodes": sum(step[4] or step[5] for game in record.games for step in game),
        "updates": int(done.metrics["num_updates"]),
        "updates_due": max(0, options.steps // settings.train_frequency - (settings.learning_starts - 1) // settings.train_frequency),
        "transitions": sum(ours.values()),
        "missing": sum((expected - ours).values()),
        "invented": sum((ours - expected).values()),
        "asked": record.asked,
        "furthest_q": record.furthest,
        "learned_again": learned.count,
        "furthest_learned": learned.furthest,
        "compilation": json.loads((done.run_dir / "metadata.json").read_text(encoding="utf-8")).get("compilation"),
        "explored": record.explored / max(1, record.chosen),
        "global_step": int(done.metrics["global_step"]),
        "seconds": round(took, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="qr_dqn/atari_pong")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compared(options, folder)
    print(json.dumps(found, indent=1))
    if options.json:
        runs = json.loads(options.json.read_text(encoding="utf-8"))["runs"] if options.json.exists() else []
        options.json.write_text(json.dumps({"runs": [*runs, found]}, indent=1) + "\n", encoding="utf-8")
    sys.exit(verdict(found))


def verdict(found: dict[str, Any]) -> str | None:
    """What is wrong, or was not looked at."""
    if not found["transitions"] or found["missing"] or found["invented"]:
        return (
            f"the replay is not what the games showed: {found['missing']} of {found['transitions']} missing, {found['invented']} invented"
        )
    if not found["asked"]:
        return "no action was held against an eager pass"
    if not found["learned_again"] and found["device"] != "cpu":  # on a CPU updates are eager anyway
        return "no update was made again: there were none in CUDA graphs"
    far = {"q": found["furthest_q"], **found["furthest_learned"]}
    apart = {name: value for name, value in far.items() if value > NEAR}
    return f"further than {NEAR} from eager code: {apart}" if apart else None


if __name__ == "__main__":
    main()
