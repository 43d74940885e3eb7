"""bfloat16 in the passes alone: what comes out, what is carried on and what is learned are float32, and near what float32 gives.

torch's autocast computes so on the CPU too, which is how it is tested here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rl_training.algorithms import DQN, DRQN
from rl_training.errors import ConfigError
from rl_training.models import as_network, build_actor_critic, build_q_network, make_distribution
from rl_training.models.image_torsos import ImageTorso, ImpalaTorso, MinAtarTorso
from rl_training.models.precision import MixedPrecision
from rl_training.models.recurrent import RecurrentActorCritic, RecurrentQNetwork, recurrent_actor_critic_parts, recurrent_q_parts
from rl_training.runtime import workflows
from rl_training.runtime.devices import use_precision
from rl_training.speed.tapes import has_policy_tape, has_tape
from value_rows import config_of

SHAPE = (2, 8, 8)
SIZES: dict[str, Any] = {
    "features_dim": 16,
    "encoder_hidden_sizes": [],
    "head_hidden_sizes": [],
    "hidden_size": 16,
    "num_layers": 1,
}


def q_network(head: str = "scalar") -> MixedPrecision:
    return build_q_network(SHAPE, 3, hidden_sizes=[32], torso=ImpalaTorso(SHAPE, spectral_norm=True), head=head)  # type: ignore[arg-type]


def recurrent(skip: bool = False) -> RecurrentQNetwork:
    parts = recurrent_q_parts(SHAPE, 3, torso=MinAtarTorso(SHAPE), skip=skip, **SIZES)
    return RecurrentQNetwork(*parts, skip=skip, obs_ndim=3)


def actor_critic() -> MixedPrecision:
    return build_actor_critic(SHAPE, make_distribution({"kind": "discrete", "n": 3}), hidden_sizes=[32], torso=MinAtarTorso(SHAPE))


def recurrent_actor_critic() -> MixedPrecision:
    return RecurrentActorCritic(
        *recurrent_actor_critic_parts(SHAPE, make_distribution({"kind": "discrete", "n": 3}), torso=MinAtarTorso(SHAPE), **SIZES)
    )


def in_bfloat16(network: MixedPrecision) -> None:
    use_precision(network, "bf16", torch.device("cpu"))  # type: ignore[arg-type]
    torsos = [part for part in network.modules() if isinstance(part, ImageTorso)]
    assert network.compute_dtype == torch.bfloat16
    assert all(torso.input_dtype == torch.bfloat16 and torso.channels_last for torso in torsos)


def passes(network: Any, images: torch.Tensor) -> list[torch.Tensor]:
    """Everything the rest asks of a network, flattened."""
    state = network.initial_state(4)
    outputs, after = network.step(images[0], state, torch.zeros(4, dtype=torch.bool))
    if hasattr(network, "unroll_core"):
        core, last = network.unroll_core(images, state)
        return [outputs, *after, core, *last]
    found = network(images[0])
    return [outputs, *(found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize(
    "make",
    [
        q_network,
        lambda: q_network("implicit"),
        recurrent,
        lambda: recurrent(skip=True),
        actor_critic,
        recurrent_actor_critic,
        lambda: as_network(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 3))),
    ],
    ids=["spectral impala", "implicit", "lstm", "lstm with skip", "actor-critic", "recurrent actor-critic", "a module of one's own"],
)
def test_passes_in_bfloat16_are_near_and_come_out_float32(make: Any) -> None:
    torch.manual_seed(0)
    network = make().eval()
    images = torch.randint(0, 256, (5, 4, *SHAPE), dtype=torch.uint8)
    exact = passes(network, images)
    in_bfloat16(network)
    with torch.no_grad():
        near = passes(network, images)
    assert all(p.dtype == torch.float32 for p in network.parameters()) and all(x.dtype == torch.float32 for x in near)
    assert any(not torch.equal(a, b) for a, b in zip(exact, near, strict=True))  # it was computed in another precision
    for a, b in zip(exact, near, strict=True):
        # Eight bits of mantissa: products err by 2^-9 each, and a few layers add up.
        torch.testing.assert_close(b, a.detach(), rtol=0.05, atol=0.03 * float(a.detach().abs().max()))


@pytest.mark.parametrize("make", [q_network, recurrent])
def test_gradients_moments_and_target_stay_float32(make: Any) -> None:
    torch.manual_seed(0)
    network = make()
    in_bfloat16(network)
    keywords: dict[str, Any] = {"gamma": 0.9, "learning_rate": 1e-3, "target_update_interval": 1}
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 4, *SHAPE), dtype=torch.uint8, generator=generator)
    if isinstance(network, RecurrentQNetwork):
        learner: Any = DRQN(network, **keywords)
        shape: tuple[int, ...] = (5, 4)
        extra = {"mask": torch.ones(shape), "episode_starts": torch.zeros(shape), "initial_h": torch.zeros(1, 4, 16)}
        batch = {"obs": images[:-1], "next_obs": images[1:], **extra, "initial_c": torch.zeros(1, 4, 16)}
    else:
        learner, shape = DQN(network, **keywords), (4,)
        batch = {"obs": images[0], "next_obs": images[1]}
    batch |= {"actions": torch.zeros(shape, dtype=torch.int64), "rewards": torch.ones(shape), "dones": torch.zeros(shape)}
    assert learner.target_network.compute_dtype == torch.bfloat16
    before = learner._flat.clone()
    metrics = learner.update(batch, global_step=1).metrics
    assert metrics["loss"].dtype == torch.float32 and learner._flat.dtype == torch.float32 and not torch.equal(learner._flat, before)
    assert learner.optimizer.mean.dtype == torch.float32 and bool(learner.optimizer.mean.any())
    for mine, theirs in zip(learner.target_network.buffers(), learner.q_network.buffers(), strict=True):
        assert torch.equal(mine, theirs)  # the target follows, the spectral vectors too


def test_a_run_that_goes_on_elsewhere_computes_as_that_device_does() -> None:
    config = config_of("dqn").replace(device="cuda", precision="bf16", compile=True)
    unmoved: dict[str, Any] = {"total_timesteps": None, "extend_schedule": False, "trackers": None, "schedules": {}, "ray_address": None}
    with pytest.warns(UserWarning, match="began on cuda and goes on on cpu: .* usual precision, not in bf16"):
        moved = workflows._moved(config, 0, device="cpu", **unmoved)
    assert (moved.precision, moved.compile) == ("auto", "auto")  # PPO's graphs have nothing to compile on the CPU
    stayed = workflows._moved(config, 0, device="cuda:1", **unmoved)
    assert (stayed.precision, stayed.compile) == ("bf16", True)


def test_gradients_by_hand_leave_it_alone() -> None:
    network = build_q_network((4,), 2, hidden_sizes=[8, 8])
    policy = build_actor_critic((4,), make_distribution({"kind": "discrete", "n": 2}), hidden_sizes=[8])
    assert has_tape(network) and has_policy_tape(policy)
    network.compute_dtype = policy.compute_dtype = torch.bfloat16
    assert not has_tape(network) and not has_policy_tape(policy)


def test_a_network_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        facts = q_network().facts  # type: ignore[attr-defined]

    for name in ("allow_tf32", "benchmark"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(ConfigError, match="bf16 is for the package's networks, and this one is a Own"):
            use_precision(Own(1, 1), "bf16", torch.device("cuda"))  # type: ignore[arg-type]
        network = q_network()
        use_precision(network, "bf16", torch.device("cuda"))  # type: ignore[arg-type]
        assert network.compute_dtype == torch.bfloat16 and torch.backends.cudnn.benchmark
        use_precision(network, "float32", torch.device("cuda"))  # type: ignore[arg-type]
        assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
