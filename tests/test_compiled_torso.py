"""Convolutions compiled inside the graph of an update: tried with one batch, which changes nothing, and left away where they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms import C51DQN, DQN, IQN
from rl_training.data import ReplayBuffer
from rl_training.models import build_q_network
from rl_training.models.image_torsos import ImpalaTorso, MinAtarTorso
from rl_training.runtime import accelerate
from rl_training.speed import ahead_of_time
from rl_training.speed.ahead_of_time import Compiled, compile_learner, trace
from rl_training.speed.compiled_torso import CompiledEncode, _of_its_own, compile_torsos, image_torsos
from rl_training.speed.graphs import GraphedUpdates

SHAPE = (1, 8, 8)


def made() -> tuple[DQN, ReplayBuffer]:
    torch.manual_seed(0)
    network = build_q_network(SHAPE, 2, hidden_sizes=[8], torso=ImpalaTorso(SHAPE, spectral_norm=True), noisy=True)
    learner = DQN(network, gamma=0.9, learning_rate=1e-3, target_update_interval=2)
    replay = ReplayBuffer(20, SHAPE, obs_dtype="uint8", seed=1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        images = torch.randint(0, 256, (2, *SHAPE), dtype=torch.uint8, generator=generator)
        replay.add(obs=images[0], actions=1, rewards=1.0, next_obs=images[1], dones=False)
    return learner, replay


def state(learner: DQN) -> list[torch.Tensor]:
    networks = learner.q_network, learner.target_network
    return [learner._flat.clone(), learner.generator.get_state(), *(x.clone() for net in networks for x in net.buffers())]


def test_what_is_compiled_is_called_in_updates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compiled(encode: Any, **options: Any) -> Any:
        def call(obs: torch.Tensor) -> torch.Tensor:
            calls.append(len(obs))
            return encode(obs)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    learner, replay = made()
    other, replay2 = made()
    before = state(learner)
    assert compile_torsos(learner, replay.sample(4)) == "torso compiled" and calls
    assert all(torch.equal(a, b) for a, b in zip(before, state(learner), strict=True))  # the trial left nothing behind
    replay2.sample(4)  # the trial's batch was drawn
    calls.clear()
    for step in range(1, 4):
        learner.update(replay.sample(4), global_step=step)
        other.update(replay2.sample(4), global_step=step)
    assert len(calls) == 6  # online and target, three times
    assert all(torch.equal(a, b) for a, b in zip(state(learner), state(other), strict=True))
    calls.clear()
    learner.q_network.eval()
    learner.q_network.step(torch.zeros(3, *SHAPE, dtype=torch.uint8), (), torch.zeros(3))
    assert not calls and set(learner.q_network.state_dict()) == set(other.q_network.state_dict())


def test_a_compiler_that_fails_is_said_and_left_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(encode: Any, **options: Any) -> Any:
        def call(obs: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no\ncompiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    learner, replay = made()
    before = state(learner)
    with pytest.warns(RuntimeWarning, match="torso could not be compiled, goes on without: no compiler"):
        said = compile_torsos(learner, replay.sample(4))
    assert "goes on without" in said and all(torch.equal(a, b) for a, b in zip(before, state(learner), strict=True))
    assert all(torso.compiled is None for torso in image_torsos(learner.target_network))
    learner.update(replay.sample(4), global_step=1)


def test_the_first_update_of_a_graph_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda encode, **options: encode)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    said: list[str] = []
    learner, replay = made()
    prepare = accelerate._torso_compiler(learner, lambda what, text: said.append(text), accelerate.nullcontext)
    updates = GraphedUpdates(learner, replay, 4, None, torch.device("cpu"), prepare)
    assert updates.compiles
    updates(1)
    assert not updates.compiles and said == ["compiling the torso…", "torso compiled"]
    assert all(isinstance(torso.compiled, CompiledEncode) for torso in image_torsos(learner.q_network))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert accelerate._torso_compiler(learner, lambda what, text: None, accelerate.nullcontext) is None


# The whole step compiled on the CPU


def learners(kind: str) -> tuple[Any, Any]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        torso = MinAtarTorso((2, 8, 8), high=1) if kind != "impala" else ImpalaTorso((2, 8, 8), high=1)
        keywords: dict[str, Any] = {"gamma": 0.9, "learning_rate": 1e-3, "target_update_interval": 4, "max_grad_norm": 10.0}
        if kind == "rainbow":
            head: dict[str, Any] = {"head": "categorical", "num_atoms": 5, "v_min": -2.0, "v_max": 2.0, "dueling": True, "noisy": True}
            made.append(C51DQN(build_q_network((2, 8, 8), 3, hidden_sizes=[16], torso=torso, **head), double_q=True, **keywords))
        elif kind == "iqn":
            network = build_q_network((2, 8, 8), 3, hidden_sizes=[16], torso=torso, head="implicit", num_quantiles=4)
            made.append(IQN(network, **keywords))
        else:
            made.append(DQN(build_q_network((2, 8, 8), 3, hidden_sizes=[16], torso=torso), **keywords))
    return made[0], made[1]


def image_batches(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        {
            "obs": torch.randint(0, 2, (8, 2, 8, 8), dtype=torch.uint8, generator=generator),
            "next_obs": torch.randint(0, 2, (8, 2, 8, 8), dtype=torch.uint8, generator=generator),
            "actions": torch.randint(0, 3, (8,), generator=generator),
            "rewards": torch.randn(8, generator=generator),
            "dones": (torch.rand(8, generator=generator) < 0.2).float(),
        }
        for _ in range(count)
    ]


def learn_alike(eager: Any, compiled: Any) -> None:
    for index, batch in enumerate(image_batches(12)):
        mine, theirs = (learner.update(batch, global_step=index + 1).metrics for learner in (compiled, eager))
        torch.testing.assert_close(mine["loss"], theirs["loss"], rtol=1e-3, atol=1e-5)
    # Adam's first steps move by the sign of a gradient: rounding of one that is nearly zero shows as a part of the rate, 1e-3
    torch.testing.assert_close(compiled._flat, eager._flat, rtol=1e-3, atol=2e-4)
    assert float((compiled._flat - eager._flat).abs().mean()) < 1e-6


@pytest.mark.parametrize("kind", ["dqn", "rainbow", "iqn", "impala"])
def test_a_traced_step_over_images_is_the_eager_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(step: Any, inputs: Any) -> Compiled:
        graph = trace(step, inputs)
        return Compiled(lambda given: graph(*given), 0.0, False)

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    eager, traced = learners(kind)
    compile_learner(traced, image_batches(1)[0])
    assert traced.gradient_step != traced.eager_step
    learn_alike(eager, traced)


@pytest.mark.slow
def test_a_compiled_step_over_images_is_the_eager_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := accelerate.missing_toolchain():
        pytest.skip(missing)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    eager, compiled = learners("rainbow")
    compile_learner(compiled, image_batches(1)[0])
    learn_alike(eager, compiled)


def test_spectral_norm_is_not_compiled_on_the_cpu_and_says_why() -> None:
    """Its vectors change as it runs, which one graph of native code cannot do."""
    torch.manual_seed(0)
    network = build_q_network((2, 8, 8), 3, hidden_sizes=[16], torso=ImpalaTorso((2, 8, 8), spectral_norm=True))
    learner = DQN(network, gamma=0.9, learning_rate=1e-3, target_update_interval=4)
    before = [buffer.clone() for buffer in network.buffers()]
    with pytest.raises(RuntimeError, match="buffers change as it runs"):
        compile_learner(learner, image_batches(1)[0])
    assert all(torch.equal(a, b) for a, b in zip(before, network.buffers(), strict=True))


def test_every_torso_has_code_of_its_own() -> None:
    """torch stops compiling at eight forms of one code object."""
    first, second = (_of_its_own(ImpalaTorso(SHAPE)) for _ in range(2))
    assert first.__code__ is not second.__code__
    obs = torch.zeros(1, *SHAPE, dtype=torch.uint8)
    assert not torch.equal(first(obs), second(obs))  # each its own weights


@pytest.mark.slow
@pytest.mark.parametrize("low", [False, True])
def test_what_torchs_compiler_traces_is_the_torso(low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, spectral vectors and bfloat16 go through its tracer unchanged: `aot_eager` runs what it traced, operation by operation."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda encode, **options: compiler(encode, backend="aot_eager", fullgraph=True, **options))
    (learner, replay), (other, replay2) = made(), made()
    if low:
        for part in [part for each in (learner, other) for net in (each.q_network, each.target_network) for part in net.modules()]:
            if hasattr(part, "compute_dtype"):
                part.compute_dtype = torch.bfloat16
            if hasattr(part, "input_dtype"):
                part.input_dtype, part.channels_last = torch.bfloat16, True
    assert compile_torsos(learner, replay.sample(4)) == "torso compiled"
    replay2.sample(4)
    for step in range(1, 4):
        learner.update(replay.sample(4), global_step=step)
        other.update(replay2.sample(4), global_step=step)
    assert all(torch.equal(a, b) for a, b in zip(state(learner), state(other), strict=True))
