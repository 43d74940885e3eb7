"""Exported policies act as the package does, in ONNX and in torch.export; what does not is not written."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.onnx._internal.exporter import _registration

from command_line import Cli
from masked_tasks import Told
from rl_training import DQN
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.errors import RunError, UserError
from rl_training.exchange import acting_module, export, parity
from rl_training.exchange.export import export_policy
from rl_training.exchange.onnx_policy import OnnxPolicy
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names
from rl_training.models.actor_critic import ActorCritic
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import fresh_policy
from value_rows import ROWS

_SMALL = {"hidden_sizes": [8, 8]}
_RECURRENT = {"features_dim": 8, "recurrent_hidden_size": 8}


@pytest.fixture(scope="module", autouse=True)
def translations() -> Iterator[None]:
    """torch reads its table of translations to ONNX anew for each export, which takes a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(functools.cache(_registration.ONNXRegistry.from_torchlib)))
        yield


def policy_of_row(algo: str, env: Any = "CartPole-v1", **algo_kwargs: Any) -> Policy:
    """An untrained policy whose outputs are spread: biases and a policy's last layer start near zero."""
    name = env if isinstance(env, str) else "callable:env"
    env_kwargs = algo_kwargs.pop("env_kwargs", {})
    said = {"seed": 3, "total_timesteps": 10, "output_dir": "unused", "env_kwargs": env_kwargs, "algo_kwargs": {**_SMALL, **algo_kwargs}}
    config = TrainConfig(algo=algo, env_id=name, **said)
    policy = fresh_policy(config, env=None if isinstance(env, str) else env)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


def said(policy: Policy, algo: str) -> dict[str, Any]:
    wrappers: dict[str, Any] = {"inside": [], "outside": []}
    return {
        "row": algo,
        "env_id": "CartPole-v1",
        "step": 7,
        "version": "1",
        "commit": "c",
        "spaces": policy.spaces,
        "wrappers": wrappers,
    }


class Choices(gym.Env[Any, Any]):
    """Observations of three numbers; actions of the space it is told."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (3,)), action_space

    def reset(self, **_: Any) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, True, False, {}


class Pixels(gym.Env[Any, Any]):
    """Images of MinAtar's form: channels last, booleans."""

    observation_space = gym.spaces.Box(0, 1, (10, 10, 4), bool)
    action_space = gym.spaces.Discrete(3)

    def reset(self, **_: Any) -> Any:
        return np.zeros((10, 10, 4), bool), {}

    def step(self, action: Any) -> Any:
        return np.zeros((10, 10, 4), bool), 0.0, True, False, {}


MULTI = gym.spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[5, 0], [0, -1]])
BOX = gym.spaces.Box(np.array([-0.5, -np.inf], np.float32), np.array([0.5, np.inf], np.float32))
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    **{row: (row, "CartPole-v1", ROWS.get(row, {}) | (_RECURRENT if "recurrent" in row else {})) for row in algorithm_names()},
    "gru of two layers": ("drqn", "CartPole-v1", {**_RECURRENT, "core": "gru", "recurrent_num_layers": 2}),
    "actions from 3": ("dqn", lambda: Choices(gym.spaces.Discrete(4, start=3)), {}),
    "multi-discrete": ("ppo", lambda: Choices(MULTI), {}),
    "gaussian": ("ppo", lambda: Choices(BOX), {}),
    "masked": ("drqn", lambda: Choices(gym.spaces.Discrete(4, start=3)), _RECURRENT),
    "masked multi-discrete": ("ppo", lambda: Choices(MULTI), {}),
    "previous action and reward": (
        "r2d2",
        lambda: Choices(gym.spaces.Discrete(4, start=3)),
        {**_RECURRENT, "previous_action_reward": True},
    ),
    "pixels": ("dqn", Pixels, {}),
    "recurrent pixels": ("drqn", Pixels, {**_RECURRENT, "env_kwargs": {"frame_stack": 2}}),
}


_EXPORTED: dict[Any, bytes] = {}


def exported(policy: Policy, algo: str) -> bytes:
    """The file of this policy. Rows that differ in what they learn, not in the network, share one: double DQN's is DQN's."""
    obs = parity.random_observations(policy, 4, np.random.default_rng(0))
    weights = [parameter.detach().numpy().tobytes() for parameter in policy.network.parameters()]
    key = repr(policy.network), json.dumps(policy.spaces), *weights, policy.outputs(obs)[0].tobytes()
    if key not in _EXPORTED:
        _EXPORTED[key] = export._onnx(policy, said(policy, algo))
    return _EXPORTED[key]


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_every_row_in_onnx_acts_as_the_package_does(case: str) -> None:
    """`_onnx` holds the file against the package itself (exchange/parity.py); here it is held against `predict`, from outside."""
    algo, env, algo_kwargs = CASES[case]
    policy = policy_of_row(algo, env, **algo_kwargs)
    masked, rng = case.startswith("masked"), np.random.default_rng(1)
    policy.spaces["action_masks"] = masked
    content = exported(policy, algo)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    states = {2: ["h", "c"], 1: ["h"], 0: []}[len(policy.network.initial_state(1))]
    led = ["previous_action", "previous_reward"] if case.startswith("previous") else []
    assert inputs == ["obs", *states, *(["episode_start"] if states else []), *led, *(["action_mask"] if masked else [])]
    parameters = list(policy.network.distribution.parameters) if isinstance(policy.network, ActorCritic) else []
    assert outputs == ["action", "values", *parameters, *(f"next_{name}" for name in states)]
    assert session.get_inputs()[0].shape[0] == "batch"

    state, carried = None, {}
    for name in states:
        layers, _, size = next(value.shape for value in session.get_inputs() if value.name == name)
        carried[name] = np.zeros((layers, 5, size), np.float32)
    equal = 0
    for step in range(20):
        obs = (rng.standard_normal((5, *policy.obs_shape)) > 0.5).astype(policy.obs_dtype)
        starts, masks = np.full(5, step % 7 == 0), parity.random_masks(policy, 5, rng)
        previous = parity.random_previous(policy, 5, rng)
        expected, state = policy.predict(obs, state, starts, action_masks=masks, previous=previous)
        also = {} if previous is None else dict(zip(led, previous, strict=True))
        also |= {**({"episode_start": starts} if states else {}), **({} if masks is None else {"action_mask": masks})}
        found = dict(zip(outputs, session.run(None, {"obs": obs, **carried, **also}), strict=True))
        carried = {name: found[f"next_{name}"] for name in states}
        assert found["action"].shape == np.shape(expected) and found["action"].dtype == np.asarray(expected).dtype
        if "mean" in parameters:
            np.testing.assert_allclose(found["action"], expected, atol=1e-4)
        else:
            equal += int((found["action"] == expected).sum())
    assert "mean" in parameters or equal >= 0.98 * expected.size * 20  # two values may be nearer than rounding


def test_a_run_with_masks_is_exported_with_them(tmp_path: Path) -> None:
    agent = DQN(lambda: Told(0), output_dir=tmp_path, eval_episodes=1, hidden_sizes=[8], learning_starts=10)
    agent.learn(30)
    exported = OnnxPolicy.load(agent.export(tmp_path / "policy.onnx"))
    obs = [0.0, 1.0, 2.0]
    free, _ = exported.answer(obs)
    others = [action != free["action"] for action in range(3)]
    masked, _ = exported.answer(obs, action_mask=others)
    assert masked["q_values"] == free["q_values"] and masked["action"] == agent.predict(obs, action_masks=others)[0] != free["action"]
    with pytest.raises(UserError, match="allows no action"):
        exported.answer(obs, action_mask=[0, 0, 0])


def test_torch_export_acts_as_the_package_does() -> None:
    policy = policy_of_row("recurrent_ppo", **_RECURRENT)
    content = export._torch_export(policy, said(policy, "recurrent_ppo"))
    extra = {"row": "", "spaces": ""}
    module = torch.export.load(io.BytesIO(content), extra_files=extra).module()
    assert extra["row"] == "recurrent_ppo" and json.loads(extra["spaces"])["obs_shape"] == [4]
    state = None
    h = c = torch.zeros(1, 4, 8)
    for step in range(5):
        obs = np.random.default_rng(step).standard_normal((4, 4)).astype(np.float32)
        found = module(obs=torch.from_numpy(obs), h=h, c=c, episode_start=torch.tensor([step == 2] * 4))
        value = policy.value(obs, state, [step == 2] * 4)
        action, state = policy.predict(obs, state, [step == 2] * 4)
        h, c = found["next_h"], found["next_c"]
        np.testing.assert_allclose(found["values"].detach().numpy(), value, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found["action"].numpy(), action)


def test_the_statistics_of_normalisation_go_along() -> None:
    policy = policy_of_row("dqn")
    normalizer = ObservationNormalizer((4,), clip=1.5, update=False)
    normalizer.moments.update(np.random.default_rng(0).normal([0, 50, -3, 1e4], [1, 20, 0.1, 1e3], (100, 4)))
    policy.normalizer = normalizer
    session = OnnxPolicy(export._onnx(policy, said(policy, "dqn")), source="x")
    obs = np.array([[0.5, 80, -3.05, 10_500], [9, 9, 9, 9]], np.float32)  # the second is clipped
    np.testing.assert_allclose(session.run({"obs": obs})["values"], policy.q_values(obs)[0], rtol=1e-4, atol=1e-5)


def test_no_file_where_the_graph_does_something_else(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = acting_module.ActingModule.forward

    def wrong(self: Any, obs: Any) -> Any:
        found = forward(self, obs)
        return {**found, "values": found["values"] * 1.01}

    monkeypatch.setattr(acting_module.ActingModule, "forward", wrong)
    for file in ("policy.onnx", "policy.pt2"):
        said = cli.refused("export", "--checkpoint", str(trained), "-o", file, code=1)
        assert "was not exported: at step 1 of 3 episodes values differs from the package's by" in said
        assert not Path(file).exists()

    def backwards(self: Any, obs: Any) -> Any:
        found = forward(self, obs)
        return {**found, "action": found["values"].argmin(-1)}

    monkeypatch.setattr(acting_module.ActingModule, "forward", backwards)
    with pytest.raises(RunError, match="the action is"):
        export_policy(trained, "policy.onnx")


def test_from_the_command_line_and_from_python(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("export", "--checkpoint", str(trained), "-o", "policy.onnx")
    assert (done.code, done.out, done.err) == (0, "policy.onnx\n", "")
    model = onnx.load("policy.onnx")
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert (about["row"], about["env_id"], about["step"], about["format"]) == ("dqn", "CartPole-v1", "120", "2")
    assert about.keys() == {"row", "env_id", "step", "format", "version", "commit", "spaces", "observation", "wrappers"}
    assert json.loads(about["spaces"])["num_actions"] == 2
    content = Path("policy.onnx").read_bytes()
    assert b"site-packages" not in content and b".py" not in content  # nothing of the machine it was made on

    agent = DQN.load(trained)
    assert agent.export("policy.pt2") == Path("policy.pt2") and b"site-packages" not in Path("policy.pt2").read_bytes()
    assert not list(Path().glob(".new-*"))
    obs = [0.1, 0.2, -0.1, 0.3]
    assert OnnxPolicy.load("policy.onnx").answer(obs)[0]["action"] == agent.predict(obs)[0]
    with pytest.raises(UserError, match="nothing to export before"):
        DQN("CartPole-v1").export("other.onnx")


def test_what_cannot_be_exported_is_one_line(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("folder.onnx").mkdir()
    run = str(trained)
    assert "ends in .onnx or .pt2" in cli.refused("export", "--checkpoint", run, "-o", "policy.pth")
    assert "is a folder" in cli.refused("export", "--checkpoint", run, "-o", "folder.onnx")
    assert "its folder does not exist" in cli.refused("export", "--checkpoint", run, "-o", "none/policy.onnx")
    assert "no such checkpoint" in cli.refused("export", "--checkpoint", "nothing", "-o", "policy.onnx")
    with monkeypatch.context() as patch:  # whoever runs this may be root, who can write anywhere
        patch.setattr("os.access", lambda path, mode: mode != os.W_OK)
        assert "its folder cannot be written to" in cli.refused("export", "--checkpoint", run, "-o", "policy.onnx")
    find = export.require_extra.__globals__["importlib"].util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "onnxscript" else find(name, *rest))
    assert "pip install 'rl-training[export]'" in cli.refused("export", "--checkpoint", run, "-o", "policy.onnx")
    monkeypatch.undo()


def test_a_network_that_no_graph_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of_row("dqn")
    step = type(policy.network).step
    monkeypatch.setattr(type(policy.network), "step", lambda self, obs, *rest: step(self, obs * float(obs.sum()), *rest))
    with pytest.raises(RunError, match="cannot make a graph"):
        export._onnx(policy, said(policy, "dqn"))
