"""QR-DQN's and IQN's updates beside Dopamine's own code: the same weights and batches, then 50 updates on each side.

python -m benchmarks.dopamine_steps write DIR --algo iqn      # batches of random play in Pong and the weights both start from (extra atari)
PEER benchmarks/dopamine_steps.py theirs DIR --algo iqn       # Dopamine's losses
python -m benchmarks.dopamine_steps compare DIR --algo iqn    # ours, and how far apart they are

PEER is the Python of an environment of its own: pip install jax==0.4.38 jaxlib==0.4.38 flax==0.10.2 optax gin-config absl-py, then
pip install --no-deps dopamine-rl==4.1.2. What Dopamine imports besides (TensorFlow, environments) does not take part in an update and is
replaced by empty modules. Halfway both copy their target network. A loss is the sum over 200 quantiles (IQN: 64), near 1: float32 leaves
a few 1e-5.

Each side draws IQN's levels in its own way. Here both get the same ones, new for each update: a set for the online network, and one for the
target's passes, of which Dopamine makes two: to select the action and to value it. Our cosines get Dopamine's frequencies, 1 to 64 instead
of 0 to 63.
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
RATE, EPS, KAPPA = 5e-5, 3.125e-4, 1.0
ATOMS = {"qr_dqn": 200, "iqn": 64}
RESULTS = Path(__file__).resolve().parent / "results" / "dopamine_steps.json"
LAYERS = {  # theirs, in the order of our parameters
    "qr_dqn": ("Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1"),
    "iqn": ("Conv_0", "Conv_1", "Conv_2", "Dense_1", "Dense_2", "Dense_0"),
}
CONVOLVED = (64, 11, 11)
"""What the last convolution gives, in our order: channels, height, width. Theirs has the channels last."""


def our_learner(algo: str) -> Any:
    import torch

    from rl_training.algorithms import IQN, QRDQN
    from rl_training.experiment.config import load_config

    config = load_config(f"{algo}/atari_pong")
    settings: Any = config.spec.parse(config.algo_kwargs)
    assert (settings.learning_rate, settings.adam_eps, settings.num_quantiles, settings.kappa) == (RATE, EPS, ATOMS[algo], KAPPA)
    torch.manual_seed(1)
    network: Any = config.spec.build_network(settings, {"obs_shape": [4, 84, 84], "num_actions": 6, "image": {"high": 255}})
    if algo == "iqn":
        network.head.frequencies += torch.pi
    learner: Any = {"qr_dqn": QRDQN, "iqn": IQN}[algo]
    return learner(network, RATE, settings.gamma, SYNC, kappa=KAPPA, adam_eps=EPS, max_grad_norm=settings.max_grad_norm)


def write(folder: Path, algo: str) -> None:
    from benchmarks.initial_gradients import played

    folder.mkdir(parents=True, exist_ok=True)
    replay, _ = played(4_000)
    batches = [replay.sample(BATCH) for _ in range(UPDATES)]
    fields = {key: np.stack([np.asarray(batch[key]) for batch in batches]) for key in batches[0]}
    np.savez(folder / "batches.npz", **fields)
    # levels[i] holds an update's two sets, the online network's and the target's.
    np.save(folder / "levels.npy", np.random.default_rng(0).random((UPDATES, 2, ATOMS[algo]), np.float32))
    weights = [p.detach().numpy() for p in our_learner(algo).parameters]
    np.savez(folder / "weights.npz", **{str(i): weight for i, weight in enumerate(weights)})
    print({key: value.shape for key, value in fields.items()}, [weight.shape for weight in weights])


def as_flax(weights: list[Any], algo: str) -> dict[str, Any]:
    """Our weights in flax's order: convolutions [height, width, in, out], dense layers [in, out]."""
    layers = {}
    features = int(np.prod(CONVOLVED))
    for i, name in enumerate(LAYERS[algo]):
        kernel, bias = weights[2 * i], weights[2 * i + 1]
        if kernel.ndim == 4:
            kernel = kernel.transpose(2, 3, 1, 0)
        else:
            if kernel.shape[1] == features:
                kernel = kernel.reshape(-1, *CONVOLVED).transpose(0, 2, 3, 1).reshape(len(kernel), -1)
            elif kernel.shape[0] == features:  # the embedding of a level: a row per feature
                kernel = kernel.reshape(*CONVOLVED, -1).transpose(1, 2, 0, 3).reshape(features, -1)
                bias = bias.reshape(CONVOLVED).transpose(1, 2, 0).reshape(-1)
            kernel = kernel.T
        layers[name] = {"kernel": np.ascontiguousarray(kernel), "bias": bias}
    return {"params": layers}


def theirs(folder: Path, algo: str) -> None:
    environments = mock.MagicMock()
    environments.RainbowNetworkType = collections.namedtuple("RainbowNetworkType", ["q_values", "logits", "probabilities"])
    environments.ImplicitQuantileNetworkType = collections.namedtuple("ImplicitQuantileNetworkType", ["quantile_values", "quantiles"])
    absent = ("tensorflow", "tensorflow_probability", "tensorflow_probability.substrates", "dopamine.metrics", "dopamine.jax.replay_memory")
    sys.modules.update({name: mock.MagicMock() for name in absent})
    sys.modules["dopamine.discrete_domains.atari_lib"] = environments
    import jax.numpy as jnp
    import optax

    loaded = np.load(folder / "weights.npz")
    params = as_flax([loaded[str(i)] for i in range(len(loaded.files))], algo)
    batches, levels = np.load(folder / "batches.npz"), np.load(folder / "levels.npy")
    train = {"qr_dqn": their_qr_dqn, "iqn": their_iqn}[algo]()
    optimizer = optax.adam(RATE, eps=EPS)
    state, target, losses = optimizer.init(params), params, []
    for i in range(UPDATES):
        images = [jnp.asarray(batches[key][i].transpose(0, 2, 3, 1)) for key in ("obs", "next_obs")]
        terminals = jnp.asarray(batches["discounts"][i] == 0)
        rewards, actions = jnp.asarray(batches["rewards"][i]), jnp.asarray(batches["actions"][i])
        state, params, loss = train(params, target, optimizer, state, (images[0], actions, images[1], rewards, terminals), levels[i])
        losses.append(np.atleast_1d(np.asarray(loss)))
        if i + 1 == SYNC:
            target = params
    np.save(folder / "theirs.npy", np.stack(losses))
    print("losses of the first and the last update:", losses[0].mean(), losses[-1].mean())


def their_qr_dqn() -> Any:
    from dopamine.jax.agents.quantile import quantile_agent
    from dopamine.jax.networks import QuantileNetwork

    network = QuantileNetwork(num_actions=6, num_atoms=ATOMS["qr_dqn"])

    def train(params: Any, target: Any, optimizer: Any, state: Any, batch: Any, levels: Any) -> Any:
        state, params, each, _ = quantile_agent.train(network, params, target, optimizer, state, *batch, KAPPA, ATOMS["qr_dqn"], GAMMA)
        return state, params, each

    return train


def their_iqn() -> Any:
    """Its losses are means over the batch."""
    import jax
    import jax.numpy as jnp
    from dopamine.jax import networks
    from dopamine.jax.agents.implicit_quantile import implicit_quantile_agent

    network, count = networks.ImplicitQuantileNetwork(num_actions=6, quantile_embedding_dim=64), ATOMS["iqn"]
    their_uniform = jax.random.uniform

    def train(params: Any, target: Any, optimizer: Any, state: Any, batch: Any, levels: Any) -> Any:
        jax.clear_caches()  # the levels below are constants of the traced function
        online, other = (jnp.asarray(each)[:, None] for each in levels)
        drawn = iter((other, other, online))  # in the order of their passes: the action's, the target's, the online network's

        def uniform(key: Any, shape: Any, *rest: Any) -> Any:
            return their_uniform(key, shape, *rest) if rest else next(drawn)  # with a type it is asked for weights, to know their shapes

        with mock.patch.object(networks.jax.random, "uniform", uniform):
            _, state, params, loss = implicit_quantile_agent.train(
                network, params, target, optimizer, state, *batch, count, count, count, GAMMA, False, KAPPA, jax.random.PRNGKey(0)
            )
        return state, params, loss

    return train


def compare(folder: Path, algo: str) -> None:
    import torch

    from benchmarks.common import machine

    learner, batches = our_learner(algo), np.load(folder / "batches.npz")
    levels, theirs = torch.from_numpy(np.load(folder / "levels.npy")), np.load(folder / "theirs.npy")
    ours, by_transition = [], theirs.shape[1] > 1  # a loss for each transition, or their mean
    for i in range(UPDATES):
        batch = {key: torch.from_numpy(batches[key][i]) for key in batches.files}
        with drawing(levels[i]):
            loss = learner.td_loss(batch)[0].loss.detach().numpy()
            learner.update(batch, global_step=i + 1)
        ours.append(loss if by_transition else loss.mean(keepdims=True))
    far = np.abs(np.stack(ours) - theirs)
    print(f"update   our loss   their loss   largest difference of {'a transition' if by_transition else 'the batch'}'s loss")
    for i in (0, 1, 9, SYNC - 1, SYNC, UPDATES - 1):
        print(f"{i + 1:6}   {ours[i].mean():8.5f}   {theirs[i].mean():10.5f}   {far[i].max():.1e}")
    relative = (far / np.maximum(np.abs(theirs), 1e-3)).max()
    print(f"largest of all {UPDATES} × {theirs.shape[1]}: {far.max():.1e}, relative {relative:.1e}")
    losses = {"ours": [float(x.mean()) for x in ours], "theirs": [float(x.mean()) for x in theirs]}
    found = {"machine": machine(torch.get_num_threads()), "largest": float(far.max()), "relative": float(relative), "losses": losses}
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**kept, algo: found}, indent=1) + "\n")


def drawing(levels: Any) -> Any:
    """Our heads draw these: the first set for the online network, the second for the target."""
    from rl_training.models.heads import ImplicitHead

    drawn = dict(zip(("online", "target"), levels, strict=True))
    return mock.patch.object(ImplicitHead, "draw_taus", lambda self, shape, role, *_: drawn[role].view(*[1] * len(shape), -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("write", "theirs", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--algo", choices=tuple(ATOMS), default="qr_dqn")
    options = parser.parse_args()
    {"write": write, "theirs": theirs, "compare": compare}[options.part](options.folder, options.algo)


if __name__ == "__main__":
    main()
