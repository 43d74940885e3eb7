"""Wrappers that look at one observation alone are part of an exported policy: it reads what the environment gives."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from command_line import Cli
from rl_training import DQN
from rl_training.envs.wrappers import WrapperCall, parse_wrappers
from rl_training.errors import RunError
from rl_training.exchange.export import _torch_export, export_policy
from rl_training.exchange.onnx_policy import OnnxPolicy, predict_onnx
from rl_training.exchange.raw_observations import RawObservations, Reader, may_be_taken
from rl_training.runtime.workflows import load_policy, predict
from test_export import translations  # noqa: F401  (a fixture for the whole module)
from test_predict import LAMPS, Lamps, trained_on

FLATTEN = WrapperCall("flatten", {})
INNER = spaces.Dict({"x": spaces.Discrete(3, start=2), "y": spaces.Box(0, 1)})
DICT = spaces.Dict({"b": spaces.Box(-1, 1, (2, 2), np.float64), "a": INNER})


class Gives(gym.Env[Any, Any]):
    """Whatever of its space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(action), False, {}


@pytest.mark.parametrize(
    ("space", "calls", "inputs"),
    [
        (spaces.Discrete(5, start=-2), [FLATTEN], ["obs"]),
        (spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[1, 0], [0, -5]]), [FLATTEN], ["obs"]),
        (spaces.MultiBinary((2, 2)), [FLATTEN, WrapperCall("keep", {"indices": [3, 0, 0]})], ["obs"]),
        (spaces.Box(-(2**40), 2**40, (3,), np.int64), [FLATTEN], ["obs"]),
        (spaces.Box(-np.inf, np.inf, (), np.float64), [FLATTEN], ["obs"]),
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), [FLATTEN], ["obs"]),
        (spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(2))), [FLATTEN], ["obs.0", "obs.1"]),
        (DICT, [FLATTEN, WrapperCall("keep", {"indices": [0, 5]})], ["obs.a.x", "obs.a.y", "obs.b"]),
        (DICT, [WrapperCall("select", {"key": "a"}), FLATTEN], ["obs.x", "obs.y"]),
        (DICT, [WrapperCall("select", {"key": "a"}), WrapperCall("select", {"key": "y"})], ["obs"]),
    ],
)
def test_a_graph_reads_as_the_packages_wrappers_do(space: gym.Space[Any], calls: list[WrapperCall], inputs: list[str]) -> None:
    """Both only move and compare numbers, so they are equal to the last bit."""
    raw = RawObservations(Gives(space), calls)
    given, read = raw.batch(40, np.random.default_rng(0))
    assert list(given) == inputs and read.std() > 0
    dtype = "uint8" if read.dtype == np.uint8 else "float32"  # as the adapter hands observations on (envs/vector.py)
    tensors = {part.name: torch.from_numpy(given[part.input]) for part in raw.parts}
    found = Reader(raw, dtype)(tensors["obs"] if inputs == ["obs"] else tensors)
    assert str(found.dtype) == f"torch.{dtype}"
    np.testing.assert_array_equal(found.numpy(), read.astype(dtype))


def test_which_wrappers_can_go_along() -> None:
    """From the network's side on, up to the first that remembers or is somebody's own."""

    def taken(*entries: Any) -> list[tuple[int, list[str]]]:
        return [(each.first, [call.name for call in each.calls]) for each in may_be_taken(parse_wrappers(list(entries)))]

    keep, stack, limit = {"keep": {"indices": [0]}}, {"frame_stack": {"size": 2}}, {"time_limit": {"max_steps": 9}}
    assert taken("flatten", limit, keep, "normalize_reward") == [(0, ["flatten", "keep"]), (2, ["keep"])]
    assert taken("flatten", stack, keep) == [(2, ["keep"])]
    assert taken(keep, "append_action_reward") == taken(limit, "normalize_observation") == taken() == []


def test_a_space_that_no_graph_can_hold_keeps_its_flatten() -> None:
    for space in (spaces.Dict({"t": spaces.Text(3), "x": spaces.Discrete(2)}), spaces.Tuple([spaces.Discrete(2)] * 33)):
        with pytest.raises(NotImplementedError):
            RawObservations(Gives(space), [FLATTEN])
    twice = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(NotImplementedError, match="one name"):
        RawObservations(Gives(twice), [FLATTEN])


@pytest.fixture(scope="module")
def lamps() -> Iterator[str]:
    gym.register("Lamps-v0", entry_point=Lamps)
    yield "Lamps-v0"
    del gym.registry["Lamps-v0"]


def test_a_dict_becomes_named_inputs(cli: Cli, lamps: str, tmp_path: Path) -> None:
    wrappers = ["flatten", {"time_limit": {"max_steps": 50}}, {"keep": {"indices": [0, 1, 2, 4, 6]}}, "normalize_observation"]
    checkpoint = trained_on(lamps, tmp_path / "runs", *wrappers)
    done = cli("export", "--checkpoint", str(checkpoint), "-o", "policy.onnx")
    assert (done.code, done.err) == (0, "")
    exported = OnnxPolicy.load("policy.onnx")
    assert json.loads(exported.metadata["wrappers"]) == {"inside": [wrappers[0], *wrappers[2:]], "outside": []}
    assert [(part.input, part.shape, part.dtype) for part in exported.parts] == [
        ("obs.lamp", (), "int64"),
        ("obs.place", (2,), "float32"),
        ("obs.switches.0", (2,), "int64"),
        ("obs.switches.1", (1,), "uint8"),
    ]
    lines = [json.dumps({"obs": LAMPS}), json.dumps({"obs": {**LAMPS, "lamp": 3, "place": [0.1, 0.9]}})]
    found, expected = cli("predict", "--onnx", "policy.onnx", *lines), cli("predict", "--checkpoint", str(checkpoint), *lines)
    for ours, theirs in zip(map(json.loads, found.out.splitlines()), map(json.loads, expected.out.splitlines()), strict=True):
        assert ours["action"] == theirs["action"]
        np.testing.assert_allclose(ours["q_values"], theirs["q_values"], rtol=1e-4, atol=1e-5)
    for changes, message in (
        ({"place": [0.5]}, "observation 1 has an obs.place that must have shape (2,), got (1,)"),
        ({"switches": [[1, 0]]}, "observation 1 has no obs.switches.1, got"),
        ({"lamp": [1]}, "observation 1 has an obs.lamp that must have shape ()"),
    ):
        assert message in cli.refused("predict", "--onnx", "policy.onnx", json.dumps({"obs": {**LAMPS, **changes}}))
    assert "observation 1 has no obs.lamp" in cli.refused("predict", "--onnx", "policy.onnx", "[1, 2]")

    # the same names without the package
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    inputs = {"obs.lamp": [2], "obs.place": [[0.5, -0.5]], "obs.switches.0": [[1, 0]], "obs.switches.1": [[7]]}
    kinds = {"obs.place": "f4", "obs.switches.1": "u1"}
    (action,) = session.run(["action"], {name: np.array(value, kinds.get(name, "i8")) for name, value in inputs.items()})
    assert action[0] == json.loads(found.out.splitlines()[0])["action"]


def test_torch_export_takes_a_dict(lamps: str, tmp_path: Path) -> None:
    policy = load_policy(trained_on(lamps, tmp_path, "flatten"))
    raw = RawObservations(Lamps(), [FLATTEN])
    module = torch.export.load(io.BytesIO(_torch_export(policy, {}, raw))).module()
    given, read = raw.batch(3, np.random.default_rng(0))
    found = module(obs={name.removeprefix("obs."): torch.from_numpy(value) for name, value in given.items()})
    np.testing.assert_allclose(found["values"].detach().numpy(), policy.q_values(read)[0], rtol=1e-4, atol=1e-5)


class Camera(Gives):
    """An image beside something that no array holds."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "words": spaces.Text(5)}))


def test_the_image_of_a_dict(tmp_path: Path) -> None:
    """`select` needs nothing of a graph: the one entry is `obs`, and the metadata says which it is. Stacks are made of entries."""
    settings: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 200, "learning_starts": 20, "eval_episodes": 1}
    wrappers = [{"select": {"key": "image"}}]
    agent = DQN(Camera, output_dir=tmp_path, total_timesteps=30, env_kwargs={"wrappers": wrappers, "frame_stack": 2}, **settings)
    checkpoint = agent.learn().checkpoint_path
    file = agent.export(tmp_path / "policy.onnx")
    (part,) = OnnxPolicy.load(file).parts
    assert (part.input, part.entry, part.shape, part.dtype) == ("obs", ("image",), (2, 8, 8, 3), "uint8")
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).tolist()
    dicts = [{"obs": {"image": image, "words": "no"}} for image in images]
    for ours, theirs in zip(predict_onnx(file, dicts), predict(checkpoint, dicts, env=Camera), strict=True):
        np.testing.assert_allclose(ours["q_values"], theirs["q_values"], rtol=1e-4, atol=1e-5)
    assert [each["q_values"] for each in predict_onnx(file, dicts)] == [each["q_values"] for each in predict_onnx(file, images)]


def test_what_cannot_go_along_is_named(tmp_path: Path) -> None:
    wrappers = ["flatten", {"frame_stack": {"size": 2}}, {"keep": {"indices": [0, 2]}}]
    checkpoint = trained_on("CartPole-v1", tmp_path, *wrappers)
    exported = OnnxPolicy.load(export_policy(checkpoint, tmp_path / "policy.onnx"))
    assert json.loads(exported.metadata["wrappers"]) == {"inside": wrappers[2:], "outside": wrappers[:2]}
    assert exported.parts[0].shape == (8,)
    obs = np.arange(8) / 10
    np.testing.assert_allclose(exported.answer(obs)[0]["q_values"], load_policy(checkpoint).q_values(obs[[0, 2]])[0], rtol=1e-4, atol=1e-5)


def test_without_its_environment_a_policy_is_exported_as_the_network_reads(tmp_path: Path) -> None:
    checkpoint = trained_on(Lamps, tmp_path, "flatten")
    with pytest.warns(UserWarning, match="flatten stay outside of the exported policy: .*callable"):
        file = export_policy(checkpoint, tmp_path / "policy.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_policy(checkpoint, file, env=Lamps)


def test_a_wrapper_that_reads_otherwise_than_the_graph(lamps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's wrappers are asked, not this module's idea of them."""
    checkpoint = trained_on(lamps, tmp_path / "runs", "flatten")
    monkeypatch.setattr(gym.wrappers.FlattenObservation, "observation", lambda self, obs: self.func(obs)[::-1])
    with pytest.raises(RunError, match="values differs from the package's"):
        export_policy(checkpoint, tmp_path / "policy.pt2")
    assert not (tmp_path / "policy.pt2").exists()
