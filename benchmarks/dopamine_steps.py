"""QR-DQN's update beside Dopamine's own code: the same weights and batches, then 50 updates on each side.

python -m benchmarks.dopamine_steps write DIR      # batches of random play in Pong and the weights both start from (needs the extra atari)
PEER benchmarks/dopamine_steps.py theirs DIR       # Dopamine's losses
python -m benchmarks.dopamine_steps compare DIR    # ours, and how far apart they are

PEER is the Python of an environment of its own: pip install jax==0.4.38 jaxlib==0.4.38 flax==0.10.2 optax gin-config absl-py, then
pip install --no-deps dopamine-rl==4.1.2. What Dopamine imports besides (TensorFlow, environments) does not take part in an update and is
replaced by empty modules. Halfway both copy their target network. A loss is the sum over 200 quantiles, near 1: float32 leaves a few 1e-5.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

UPDATES, BATCH, GAMMA, SYNC = 50, 32, 0.99**3, 25
RATE, EPS, ATOMS, KAPPA = 5e-5, 3.125e-4, 200, 1.0
RESULTS = Path(__file__).resolve().parent / "results" / "dopamine_steps.json"
LAYERS = ("Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1")
CONVOLVED = (64, 11, 11)
"""What the last convolution gives, in our order: channels, height, width. Theirs has the channels last."""


def our_learner() -> Any:
    import torch

    from rl_training.algorithms import QRDQN
    from rl_training.experiment.config import load_config

    config = load_config("qr_dqn/atari_pong")
    settings: Any = config.spec.parse(config.algo_kwargs)
    assert (settings.learning_rate, settings.adam_eps, settings.num_quantiles, settings.kappa) == (RATE, EPS, ATOMS, KAPPA)
    torch.manual_seed(1)
    network: Any = config.spec.build_network(settings, {"obs_shape": [4, 84, 84], "num_actions": 6, "image": {"high": 255}})
    return QRDQN(network, RATE, settings.gamma, SYNC, kappa=KAPPA, adam_eps=EPS, max_grad_norm=settings.max_grad_norm)


def write(folder: Path) -> None:
    from benchmarks.initial_gradients import played

    folder.mkdir(parents=True, exist_ok=True)
    replay, _ = played(4_000)
    batches = [replay.sample(BATCH) for _ in range(UPDATES)]
    fields = {key: np.stack([np.asarray(batch[key]) for batch in batches]) for key in batches[0]}
    np.savez(folder / "batches.npz", **fields)
    weights = [p.detach().numpy() for p in our_learner().parameters]
    np.savez(folder / "weights.npz", **{str(i): weight for i, weight in enumerate(weights)})
    print({key: value.shape for key, value in fields.items()}, [weight.shape for weight in weights])


def as_flax(weights: list[Any]) -> dict[str, Any]:
    """Our weights in flax's order: convolutions [height, width, in, out], dense layers [in, out]."""
    layers = {}
    for i, name in enumerate(LAYERS):
        kernel, bias = weights[2 * i], weights[2 * i + 1]
        if kernel.ndim == 4:
            kernel = kernel.transpose(2, 3, 1, 0)
        else:
            if kernel.shape[1] == np.prod(CONVOLVED):
                kernel = kernel.reshape(-1, *CONVOLVED).transpose(0, 2, 3, 1).reshape(len(kernel), -1)
            kernel = kernel.T
        layers[name] = {"kernel": np.ascontiguousarray(kernel), "bias": bias}
    return {"params": layers}


def theirs(folder: Path) -> None:
    environments = mock.MagicMock()
    environments.RainbowNetworkType = collections.namedtuple("RainbowNetworkType", ["q_values", "logits", "probabilities"])
    absent = ("tensorflow", "tensorflow_probability", "tensorflow_probability.substrates", "dopamine.metrics", "dopamine.jax.replay_memory")
    sys.modules.update({name: mock.MagicMock() for name in absent})
    sys.modules["dopamine.discrete_domains.atari_lib"] = environments
    import jax.numpy as jnp
    import optax
    from dopamine.jax.agents.quantile import quantile_agent
    from dopamine.jax.networks import QuantileNetwork

    loaded = np.load(folder / "weights.npz")
    params = as_flax([loaded[str(i)] for i in range(len(loaded.files))])
    batches = np.load(folder / "batches.npz")
    network = QuantileNetwork(num_actions=6, num_atoms=ATOMS)
    optimizer = optax.adam(RATE, eps=EPS)
    state, target, losses = optimizer.init(params), params, []
    for i in range(UPDATES):
        images = [jnp.asarray(batches[key][i].transpose(0, 2, 3, 1)) for key in ("obs", "next_obs")]
        terminals = jnp.asarray(batches["discounts"][i] == 0)
        rewards, actions = jnp.asarray(batches["rewards"][i]), jnp.asarray(batches["actions"][i])
        step = (images[0], actions, images[1], rewards, terminals, KAPPA, ATOMS, GAMMA)
        state, params, each, _ = quantile_agent.train(network, params, target, optimizer, state, *step)
        losses.append(np.asarray(each))
        if i + 1 == SYNC:
            target = params
    np.save(folder / "theirs.npy", np.stack(losses))
    print("losses of the first and the last update:", losses[0].mean(), losses[-1].mean())


def compare(folder: Path) -> None:
    import torch

    from benchmarks.common import machine

    learner, batches = our_learner(), np.load(folder / "batches.npz")
    ours = []
    for i in range(UPDATES):
        batch = {key: torch.from_numpy(batches[key][i]) for key in batches.files}
        ours.append(learner.td_loss(batch)[0].loss.detach().numpy())
        learner.update(batch, global_step=i + 1)
    theirs = np.load(folder / "theirs.npy")
    far = np.abs(np.stack(ours) - theirs)
    print("update   our loss   their loss   largest difference of a transition's loss")
    for i in (0, 1, 9, SYNC - 1, SYNC, UPDATES - 1):
        print(f"{i + 1:6}   {ours[i].mean():8.5f}   {theirs[i].mean():10.5f}   {far[i].max():.1e}")
    relative = (far / np.maximum(np.abs(theirs), 1e-3)).max()
    print(f"largest of all {UPDATES} × {BATCH}: {far.max():.1e}, relative {relative:.1e}")
    losses = {"ours": [float(x.mean()) for x in ours], "theirs": [float(x.mean()) for x in theirs]}
    found = {"machine": machine(torch.get_num_threads()), "largest": float(far.max()), "relative": float(relative), "losses": losses}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("write", "theirs", "compare"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    {"write": write, "theirs": theirs, "compare": compare}[options.part](options.folder)


if __name__ == "__main__":
    main()
