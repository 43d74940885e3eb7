"""R2D2 on real Atari frames, by brute force: what a sampled chunk is learned from is what acting saw, did and computed.

Everything between the games and the loss is the run's own: adapter, stacks, actor, frames stored once, chunks, replay, view, rule. Beside
it the acting network's calls are written down. With unchanged weights an unroll has to say of each step what acting said of it.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rl_training.algorithms.r2d2 import R2D2
from rl_training.algorithms.rules import rescale, unrescale
from rl_training.data import sampled_ring, samplers, storage
from rl_training.experiment.config import TrainConfig
from rl_training.runtime import drqn_trainer
from rl_training.runtime.actor import Actor
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.trainer_setup import prepare
from rl_training.speed.graphs import GraphedForward
from rl_training.types import Array, Batch, EnvStep, Previous

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs the extra atari")

ENVS, LENGTH, BURN_IN, OVERLAP, N_STEP, GAMMA = 3, 12, 4, 8, 5, 0.9
CHUNKS = 40  # held, one of which comes every four steps of a game


def config(folder: Path, game: str, vectorization: Any, **env_kwargs: Any) -> TrainConfig:
    return TrainConfig(
        algo="r2d2",
        env_id=f"ALE/{game}-v5",
        env_kwargs={"preset": "r2d2", **env_kwargs},
        seed=3,
        total_timesteps=1000,
        output_dir=folder,
        device="cpu",
        num_envs=ENVS,
        vectorization=vectorization,
        algo_kwargs={
            "torso": "nature",
            "hidden_sizes": [],
            "features_dim": 32,
            "recurrent_hidden_size": 16,
            "head_hidden_sizes": [16],
            "previous_action_reward": True,
            "dueling": True,
            "n_step": N_STEP,
            "gamma": GAMMA,
            "value_rescaling": True,
            "sequence_length": LENGTH,
            "burn_in": BURN_IN,
            "sequence_overlap": OVERLAP,
            "prioritized": True,
            "buffer_capacity": CHUNKS * LENGTH,  # few: the ring and its frames wrap
        },
    )


class Seen(NamedTuple):
    """One step of one game as the actor had it: what the network was given and said, and what came of its action."""

    obs: Array
    previous: tuple[int, float]
    state: Array  # [parts, layers, H] before obs
    after: Array  # the same after it
    q_values: Array
    action: int
    reward: float
    done: bool  # terminated, or a life was lost
    ended: bool
    final_obs: Array  # what the action led to


class Chosen(EpsilonGreedy):
    """Remembers the last actions."""

    actions: Array

    def to_env(self, actions: Array) -> Array:
        self.actions = actions
        return actions


class Recorder:
    """Runs an actor and writes down each game's steps."""

    def __init__(self, made: TrainConfig) -> None:
        self.setup = prepare(made, None)
        self.parts = drqn_trainer.build_parts(self.setup, R2D2)
        network = self.network = self.parts.network
        with torch.no_grad():  # fresh networks say nearly the same of every image
            for matrix in (each for each in network.parameters() if each.ndim > 1):
                matrix.mul_(2)
        actions = self.setup.spaces["num_actions"]
        self._chosen = Chosen(lambda _: 0.5, num_actions=actions, learning_starts=0, seed=0)
        self.actor = Actor(self.setup.envs, network, self.parts.feed, behaviour=self._chosen, device=self.setup.device, seed=0)
        self.games: list[list[Seen]] = [[] for _ in range(ENVS)]
        self._step = network.step
        network.step = self._recorded
        self._call: tuple[Any, ...] = ()

    def _recorded(self, obs: Any, state: Any, starts: Any, draws: Any, previous: Previous) -> Any:
        before = self.network.reset_state(state, starts)
        outputs, after = self._step(obs, state, starts, draws, previous)
        self._call = tuple(x.numpy().copy() for x in (obs, *previous, torch.stack(before), torch.stack(after), outputs))
        return outputs, after

    def run(self, steps: int) -> None:
        for t in range(steps):
            self._write(self.actor.step(ENVS * t), self._chosen.actions)
            if t % 7 == 0:
                self.actor.flush()
        self.actor.flush()

    def _write(self, step: EnvStep, actions: Array) -> None:
        obs, led, paid, before, after, q_values = self._call
        for i, game in enumerate(self.games):
            if not step.valid[i]:
                continue
            lost = step.lost_life is not None and bool(step.lost_life[i])
            ended = bool(step.terminated[i] or step.truncated[i])
            came = int(actions[i]), float(step.rewards[i]), bool(step.terminated[i]) or lost, ended, step.final_obs[i]
            game.append(Seen(obs[i], (int(led[i]), float(paid[i])), before[:, :, i], after[:, :, i], q_values[i], *came))


def places_of(games: list[list[Seen]]) -> dict[bytes, list[tuple[int, int]]]:
    """Where each observation was seen: games may show the same one twice."""
    places = defaultdict(list)
    for i, game in enumerate(games):
        for t, seen in enumerate(game):
            places[seen.obs.tobytes()].append((i, t))
    return places


def valid_slots(batch: Batch, row: int) -> tuple[int, int]:
    """The slots that hold steps of an episode: those to train, and a burn-in unless it is empty."""
    trained = np.flatnonzero(batch["mask"][:, row].numpy())
    begin = BURN_IN if batch["episode_starts"][BURN_IN, row] else 0
    return begin, int(trained[-1]) + 1


def matches(batch: Batch, row: int, begin: int, end: int, steps: list[Seen]) -> bool:
    """Whether the chunk holds exactly these steps, from the state in which acting saw the first."""
    if len(steps) < end - begin or any(seen.ended for seen in steps[:-1]):
        return False
    state = torch.stack([batch["initial_h"][:, row], batch["initial_c"][:, row]]).numpy()
    if not np.array_equal(state, steps[0].state):
        return False
    led = batch["previous_actions"][:, row], batch["previous_rewards"][:, row]
    for slot, seen in zip(range(begin, end), steps, strict=True):
        stored = [batch[name][slot, row].numpy() for name in ("obs", "next_obs", "actions", "rewards", "dones")]
        wanted = [seen.obs, seen.final_obs, seen.action, np.float32(seen.reward), float(seen.done)]
        if not all(np.array_equal(mine, theirs) for mine, theirs in zip(stored, wanted, strict=True)):
            return False
        if (int(led[0][slot]), float(led[1][slot])) != seen.previous:
            return False
    return True


def target_by_hand(recorder: Recorder, steps: list[Seen], first: int) -> list[tuple[float, float, float]]:
    """Of each trained step (from `first` on): the target's R, Γ and y, one number at a time.

    Q of the online network is what acting computed, and at the chunk's end one step more; the target network walks the chunk from the
    stored state.
    """
    online, target = recorder._step, recorder.parts.learner.target_network
    last = steps[-1]
    led = [seen.previous for seen in steps] + [(last.action, last.reward)]
    images = [seen.obs for seen in steps] + [last.final_obs]

    def ask(step: Any, t: int, state: Any) -> Any:
        previous = Previous(torch.tensor([led[t][0]]), torch.tensor([led[t][1]], dtype=torch.float32))
        q, state = step(torch.from_numpy(images[t])[None], state, torch.zeros(1, dtype=torch.bool), previous=previous)
        return q[0].double().numpy(), state

    def as_state(values: Array) -> Any:
        return tuple(torch.from_numpy(part)[:, None] for part in values)

    with torch.no_grad():
        q_online = [seen.q_values for seen in steps] + [ask(online, len(steps), as_state(last.after))[0]]
        state, q_target = as_state(steps[0].state), []
        for t in range(len(images)):
            q, state = ask(target.step, t, state)
            q_target.append(q)
    made = []
    for t in range(first, len(steps)):
        total, discount, k = 0.0, 1.0, 0
        while k < N_STEP and t + k < len(steps):
            total, discount, k = total + discount * steps[t + k].reward, discount * GAMMA, k + 1
            if steps[t + k - 1].done:
                discount = 0.0
                break
        best = q_target[t + k][int(np.argmax(q_online[t + k]))]
        y = rescale(total + discount * unrescale(torch.tensor(best, dtype=torch.float64)))
        made.append((total, discount, float(y)))
    return made


STARTS, MIDDLE, ENDS = ("start", "cut"), ("later", "cut"), ("later", "end")
CASES = [
    # truncated every 31 steps: the chunks of an episode begin with it, go on and end
    ("Boxing", "native", {"max_steps": 31}, 150, False),
    ("Boxing", "sync", {"max_steps": 31}, 100, False),
    ("Boxing", "native", {"max_steps": 31}, 150, True),
    # games over after a hundred steps or more, and lost lives inside chunks
    ("Qbert", "native", {"terminal_on_life_loss": True}, 400, False),
]


@pytest.mark.parametrize(("game", "vectorization", "env_kwargs", "steps", "as_on_a_gpu"), CASES)
def test_chunks_are_learned_from_as_they_were_acted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    game: str,
    vectorization: str,
    env_kwargs: dict[str, Any],
    steps: int,
    as_on_a_gpu: bool,
) -> None:
    if as_on_a_gpu:  # replay in tensors, and the pass that a CUDA graph replays
        for module in (storage, sampled_ring, samplers):
            monkeypatch.setattr(module, "uses_numpy", lambda device: False)
    recorder = Recorder(config(tmp_path, game, vectorization, **env_kwargs))
    if as_on_a_gpu:
        recorder.actor.use_forward(lambda *parts: GraphedForward(*parts, device=torch.device("cpu")))
    learner, replay = recorder.parts.learner, recorder.parts.replay
    with torch.no_grad():  # two networks that differ, so that each stands where it should
        learner.flat_target.add_(torch.randn(len(learner.flat_target), generator=torch.Generator().manual_seed(1)), alpha=0.05)
    recorder.run(steps)
    recorder.setup.envs.close()
    batch = replay.sample(64, beta=0.6)
    with torch.no_grad():
        networks = learner.q_network, learner.target_network
        aligned = learner.view.align(batch, *networks, backup=learner.backup, generator=learner.generator)
        y = learner.rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)
    places = places_of(recorder.games)
    kinds, dones_inside = set(), 0
    for row in range(64):
        begin, end = valid_slots(batch, row)
        found = [
            walked
            for i, t in places[batch["obs"][begin, row].numpy().tobytes()]
            if matches(batch, row, begin, end, walked := recorder.games[i][t : t + end - begin])
        ]
        assert found, f"chunk {row} is nothing that was acted"
        walked, first = found[0], BURN_IN - begin
        by_hand = target_by_hand(recorder, walked, first)
        for slot, (seen, (total, discount, wanted)) in enumerate(zip(walked[first:], by_hand, strict=True)):
            # float32, and sums in another order: a dozen steps of an LSTM whose values are of size 1
            assert float(aligned.chosen[slot, row]) == pytest.approx(seen.q_values[seen.action], abs=2e-5)
            assert float(aligned.rewards[slot, row]) == pytest.approx(total, abs=1e-5)
            assert float(aligned.discounts[slot, row]) == pytest.approx(discount, abs=1e-6)
            assert float(y[slot, row]) == pytest.approx(wanted, abs=2e-5)
        kinds.add(("start" if begin else "later", "end" if walked[-1].ended else "cut"))
        dones_inside += any(seen.done for seen in walked[:-1])
    # it was about something: values differ, all kinds of chunks came, and the oldest had left the ring
    assert float(aligned.chosen.std()) > 0.1 and kinds >= {STARTS, MIDDLE, ENDS}
    assert len(replay) <= CHUNKS and sum(map(len, recorder.games)) > 1.5 * CHUNKS * (LENGTH - OVERLAP)
    assert bool(dones_inside) == (game == "Qbert")
