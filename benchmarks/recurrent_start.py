"""How soon R2D2's network sees the screen, by Adam's ε and by how weights start: `python -m benchmarks.recurrent_start`.

Random play in Boxing, the network of `r2d2/atari_boxing`. What it has to say of every step is a tenth of where the white boxer stands (its
column, standardised): errors are then of the size that TD errors have there. Printed are, before the first update, the spread that the
image and the previous action give to the gates of the core, and the root mean square gradient of some matrices; then, every 50 updates of
6 × (4 + 16) steps, R² on two games that are not learned from. Needs the extra atari.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.envs import make_envs
from rl_training.experiment.config import load_config
from rl_training.types import NO_ACTION, Previous

GAMES, HELD_OUT, STEPS, HOLD = 8, [6, 7], 260, 4
BURN_IN, TRAINED, ERROR = 4, 16, 0.1
WHITE = 198  # of the greys
BATCHES = 8  # that the first gradients are measured with
CASES = [(eps, start) for start in ("torch", "variance_scaling") for eps in (1.25e-5, 1e-8)]
MATRICES = {"core": "core.lstm.weight_ih_l0", "encoder": "encoder.layers.layers.0.weight", "value": "head.value.layers.0.weight"}


class Played(NamedTuple):
    obs: Tensor  # [T, E, 4, 84, 84]
    actions: Tensor  # [T, E]
    before: Tensor  # the action that led to obs, [T, E]
    where: Tensor  # what to say, [T, E]


def play() -> Played:
    envs = make_envs("ALE/Boxing-v5", num_envs=GAMES, seed=5, env_kwargs={"preset": "r2d2"}, vectorization="native")
    random, obs, stacks, taken = np.random.default_rng(0), envs.begin(), [], []
    actions = np.zeros(GAMES, np.int64)
    for step in range(STEPS):
        if step % HOLD == 0:  # held for a while, so that the boxers get about
            actions = random.integers(18, size=GAMES)
        stacks.append(obs)
        taken.append(actions)
        obs = envs.step(actions).obs
    envs.close()
    seen, acted = np.stack(stacks), np.stack(taken)
    white = seen[:, :, -1, 25:70, 14:70] >= WHITE  # inside the ring
    columns = (white.sum(2) * np.arange(white.shape[-1])).sum(-1) / np.maximum(white.sum((2, 3)), 1)
    before = np.concatenate([np.full((1, GAMES), NO_ACTION), acted[:-1]])
    where = ERROR * (columns - columns.mean()) / columns.std()
    return Played(*(torch.from_numpy(x) for x in (seen, acted, before, where.astype(np.float32))))


def network_of(start: str) -> Any:
    config = load_config("r2d2/atari_boxing")
    settings: Any = config.spec.parse({**config.algo_kwargs, "initialization": start})
    torch.manual_seed(0)
    return config.spec.build_network(settings, {"obs_shape": [4, 84, 84], "num_actions": 18, "image": {"high": 255}})


def said(network: Any, played: Played, begin: int, games: list[int], trained: int = TRAINED) -> Tensor:
    """Q-values [trained, games, actions] after a burn-in from zeros."""
    time = slice(begin, begin + BURN_IN + trained)
    previous = Previous(played.before[time, games], torch.zeros(BURN_IN + trained, len(games)))
    core, _ = network.unroll_core(played.obs[time, games], network.initial_state(len(games)), previous=previous)
    values: Tensor = network.head(core[BURN_IN:])
    return values


@torch.no_grad()
def spreads(network: Any, played: Played) -> tuple[float, float]:
    """What the gates of the core get of the image and of the previous action: standard deviation over steps, mean over gates."""
    features = network.encoder(played.obs[::8].flatten(0, 1))
    one_hot = torch.nn.functional.one_hot(played.before[1::8].flatten(), 18).float()
    weight = network.core.lstm.weight_ih_l0
    cut = features.shape[1]
    parts = features @ weight[:, :cut].T, one_hot @ weight[:, cut : cut + 18].T
    return float(parts[0].std(0).mean()), float(parts[1].std(0).mean())


@torch.no_grad()
def explained(network: Any, played: Played) -> float:
    """R² on the held-out games."""
    begins = range(20, STEPS - 48, 44)
    found = torch.cat([said(network, played, begin, HELD_OUT, 40).mean(-1) for begin in begins])
    wanted = torch.cat([played.where[begin + BURN_IN : begin + BURN_IN + 40, HELD_OUT] for begin in begins])
    return 1 - float((found - wanted).square().mean() / wanted.var(correction=0))


def gradients(network: Any, played: Played, random: np.random.Generator) -> list[Tensor]:
    """Of the mean Huber loss on a batch."""
    begin = int(random.integers(STEPS - BURN_IN - TRAINED))
    time, games = slice(begin + BURN_IN, begin + BURN_IN + TRAINED), [i for i in range(GAMES) if i not in HELD_OUT]
    chosen = said(network, played, begin, games).gather(-1, played.actions[time, games].unsqueeze(-1)).squeeze(-1)
    loss = torch.nn.functional.huber_loss(chosen, played.where[time, games])
    return list(torch.autograd.grad(loss, list(network.parameters())))


def learn(eps: float, start: str, played: Played, updates: int) -> None:
    network, random = network_of(start), np.random.default_rng(1)
    image, action = spreads(network, played)
    print(f"{start:16} ε {eps:g}: gates' spread of the image {image:.4f}, of the previous action {action:.4f}", flush=True)
    names = [name for name, _ in network.named_parameters()]
    first = [gradients(network, played, random) for _ in range(BATCHES)]
    sizes = {name: torch.stack([grads[names.index(path)] for grads in first]).square().mean().sqrt() for name, path in MATRICES.items()}
    print(f"{'':16} gradients {', '.join(f'{name} {float(size):.1e}' for name, size in sizes.items())}", flush=True)
    adam = torch.optim.Adam(network.parameters(), lr=1e-4, eps=eps)
    for update in range(1, updates + 1):
        for parameter, grad in zip(network.parameters(), gradients(network, played, random), strict=True):
            parameter.grad = grad
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        adam.step()
        if update % 50 == 0:
            print(f"{'':16} {update} updates: R² {explained(network, played):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200, help="(default: %(default)s)")
    options = parser.parse_args()
    played = play()
    for eps, start in CASES:
        learn(eps, start, played, options.updates)


if __name__ == "__main__":
    main()
