"""MinAtar's convolution as products of patches: what torch's convolution says, its gradient, and the acting pass of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learners import batch_of, check_pullback
from rl_training.algorithms import DQN
from rl_training.models.build import build_q_network
from rl_training.models.image_torsos import MinAtarTorso, NatureTorso
from rl_training.runtime.accelerate import accelerate_learner, missing_toolchain
from rl_training.speed import ahead_of_time
from rl_training.speed.hand_gradients import HandGradient, use_hand_gradients
from rl_training.speed.numpy_pass import numpy_forward
from rl_training.speed.patches import has_patches, patches_of
from rl_training.speed.tapes import has_tape
from test_accelerate import interpreted

pytestmark = pytest.mark.numeric

SHAPE = (4, 10, 7)  # channels, height and width are three numbers: none stands for another
HEADS: dict[str, dict[str, Any]] = {
    "dqn": {"head": "scalar"},
    "dueling": {"head": "scalar", "dueling": True},
    "qr_dqn": {"head": "quantile", "num_quantiles": 5},
    "rainbow": {"head": "categorical", "dueling": True, "noisy": True, "num_atoms": 7, "v_min": -3.0, "v_max": 3.0},
}


def network(hidden: tuple[int, ...] = (12,), high: float = 1.0, torso: Any = None, **head: Any) -> Any:
    torch.manual_seed(0)
    made = build_q_network(SHAPE, 3, hidden_sizes=hidden, torso=torso or MinAtarTorso(SHAPE, high), **(head or HEADS["dqn"]))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # biases too: torch begins some at 0
    return made


def images(count: int, high: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(0, high + 1, (count, *SHAPE), np.uint8))


def test_patches_are_what_a_convolution_sees() -> None:
    """With the filter of all zeros but one, a convolution gives the pixels that this one lies on: that row of the patches."""
    torso, obs = MinAtarTorso(SHAPE, 5.0), images(2, 5)
    patches = patches_of(torso, obs)
    assert patches.shape == (2, 4 * 9, 8 * 5)
    for row, (channel, y, x) in enumerate(np.ndindex(4, 3, 3)):
        torch.testing.assert_close(patches[:, row].view(2, 8, 5), obs[:, channel, y : y + 8, x : x + 5] / 5.0)


@pytest.mark.parametrize("hidden", [(), (12,), (12, 6)])
@pytest.mark.parametrize("high", [1, 255])
@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_by_hand_is_autograds(head: str, high: int, hidden: tuple[int, ...]) -> None:
    net = network(hidden, high, **HEADS[head]).double()
    assert has_tape(net)
    check_pullback(net, images(5, high).double())


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("high", [1, 255])
@pytest.mark.parametrize("head", HEADS)
def test_acting_in_numpy_says_what_the_network_says(head: str, high: int, num_envs: int) -> None:
    net, obs = network((12,), high, **HEADS[head]), images(num_envs, high)
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    forward = numpy_forward(net, obs.numpy(), (), mine)
    assert forward is not None
    for _ in range(2):  # and after the parameters have changed
        said, _ = forward(obs.numpy(), (), np.zeros(num_envs, bool))
        with torch.inference_mode():
            expected, _ = net.step(obs, (), torch.zeros(0, dtype=torch.bool), net.draw(theirs, (num_envs,), "acting"))
        # sums of up to 640 float32 products, in another order: 640 roundings of 6e-8 each, of terms of the size of the result
        np.testing.assert_allclose(said, expected.numpy(), rtol=1e-4, atol=4e-5 * float(expected.abs().max()))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)


def test_only_this_convolution_has_patches() -> None:
    class Own(MinAtarTorso):
        def encode(self, obs: torch.Tensor) -> torch.Tensor:
            return 2 * super().encode(obs)

    assert has_patches(MinAtarTorso(SHAPE))
    assert has_tape(network(torso=MinAtarTorso(SHAPE, activation="tanh")))
    for torso in (Own(SHAPE), MinAtarTorso(SHAPE, layer_norm=True), NatureTorso((4, 36, 36))):
        assert not has_patches(torso)
    run_otherwise = MinAtarTorso(SHAPE)
    run_otherwise.compiled = run_otherwise.encode
    assert not has_patches(run_otherwise)
    assert not has_tape(network(torso=MinAtarTorso(SHAPE, activation="gelu")))
    assert numpy_forward(network(torso=MinAtarTorso(SHAPE, activation="gelu")), images(1).numpy(), (), torch.Generator()) is None


def test_a_learner_of_images_takes_the_gradient_by_hand() -> None:
    learner = DQN(network(), 1e-3, 0.9, 10)
    use_hand_gradients(learner)
    assert isinstance(learner.gradient, HandGradient)


@pytest.mark.parametrize("how", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])  # a compilation takes half a minute
def test_a_compiled_update_learns_what_an_eager_one_does(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "traced":
        monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    elif missing_toolchain():
        pytest.skip(str(missing_toolchain()))
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    eager, compiled = (DQN(network(), learning_rate=1e-3, gamma=0.9, target_update_interval=3) for _ in range(2))
    batch = batch_of(8, obs=images(8), actions=torch.arange(8) % 3, rewards=torch.linspace(-1, 1, 8), next_obs=images(8).flip(0))
    for learner in (eager, compiled):
        accelerate_learner(learner)
    ahead_of_time.compile_learner(compiled, batch)
    assert compiled.gradient_step != compiled.eager_step
    for step in range(1, 6):
        mine, theirs = (float(learner.update(batch, global_step=step).metrics["loss"]) for learner in (compiled, eager))
        # Float32 sums in another order: some 1e-6 of a loss, and Adam's next step makes no more than a few times that of it.
        assert mine == pytest.approx(theirs, rel=1e-4)
        torch.testing.assert_close(compiled.last_td_errors, eager.last_td_errors, rtol=1e-4, atol=1e-5)
