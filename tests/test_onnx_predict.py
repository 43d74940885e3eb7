"""`predict --onnx`: the answers of `predict --checkpoint`, and one line for a file that is not what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from command_line import Cli
from rl_training import DQN, DRQN, PPO
from rl_training.errors import UserError
from rl_training.exchange.export import export_policy
from rl_training.exchange.onnx_policy import OnnxPolicy, predict_onnx
from rl_training.exchange.raw_observations import RawObservations
from rl_training.runtime.workflows import predict

ROOT = Path(__file__).resolve().parent.parent
A, B = [0.0, 0.1, -0.02, 0.3], [0.5, -0.5, 0.1, 0.0]


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """float32 sums in another order: some 1e-6 of numbers of order 1."""
    return found.keys() == expected.keys() and all(np.allclose(found[key], expected[key], rtol=1e-4, atol=1e-5) for key in found)


def test_the_same_answers_as_from_the_checkpoint(cli: Cli, trained: Path) -> None:
    export_policy(trained, "policy.onnx")
    lines = [json.dumps(A), json.dumps({"obs": B, "episode_start": True})]
    told, expected = cli("predict", "--onnx", "policy.onnx", *lines), cli("predict", "--checkpoint", str(trained), *lines)
    assert told.code == 0 and told.err == ""
    for found, wanted in zip(told.out.splitlines(), expected.out.splitlines(), strict=True):
        assert same(json.loads(found), json.loads(wanted))
    for bad in ("[1, 2]", '{"obs": {"x": 1}}', '{"obs": [0, 0, 0, 0], "action_mask": [1, 0]}', "[0, 0, 0, NaN]"):
        cli.refused("predict", "--onnx", "policy.onnx", bad)
    assert "--checkpoint or --onnx" in cli.refused("predict", "--onnx", "policy.onnx", "--checkpoint", str(trained), lines[0])
    assert "--checkpoint or --onnx" in cli.refused("predict", lines[0])


def small(folder: Path) -> dict[str, Any]:
    return {"output_dir": folder, "eval_episodes": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: DRQN("CartPole-v1", learning_starts=20, features_dim=8, recurrent_hidden_size=8, hidden_sizes=[], **small(folder)),
        lambda folder: PPO("Pendulum-v1", hidden_sizes=(8,), num_steps=32, **small(folder)),
    ],
)
def test_state_and_distribution_come_along(make: Callable[[Path], Any], tmp_path: Path) -> None:
    agent = make(tmp_path)
    checkpoint = agent.learn(40).checkpoint_path
    policy = OnnxPolicy.load(agent.export(tmp_path / "policy.onnx"))
    rng, state = np.random.default_rng(0), None
    observations = [{"obs": rng.standard_normal(policy.parts[0].shape).tolist(), "episode_start": step == 3} for step in range(6)]
    for given, expected in zip(observations, predict(checkpoint, observations), strict=True):
        answer, state = policy.answer(given["obs"], state, [given["episode_start"]])
        assert same(answer, expected)


def test_what_led_to_an_observation_comes_along(tmp_path: Path) -> None:
    """The first has no reward and is an episode's start, said or not."""
    sizes = {"features_dim": 8, "recurrent_hidden_size": 8, "hidden_sizes": []}
    agent = DRQN("CartPole-v1", learning_starts=20, previous_action_reward=True, **sizes, **small(tmp_path))
    checkpoint = agent.learn(40).checkpoint_path
    file = agent.export(tmp_path / "policy.onnx")
    observations = [{"obs": A}, {"obs": B, "reward": 1.5}, {"obs": A, "reward": -3.0}, {"obs": B, "episode_start": True}]
    for found, expected in zip(predict_onnx(file, observations), predict(checkpoint, observations), strict=True):
        assert same(found, expected)
    with pytest.raises(UserError, match="observation 2 has no reward"):
        list(predict_onnx(file, [{"obs": A}, {"obs": B}]))


class Numbered(gym.Env[Any, Any]):
    """Shows an element of `space`; one action of two does as well as the other."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, True, {}


@pytest.mark.parametrize(
    ("space", "inside", "outside", "said"),
    [
        (gym.spaces.Discrete(3, start=2), [2, 4], [1, 5, -(10**9)], "must be from 2 to 4"),
        (gym.spaces.Discrete(100, start=156, dtype=np.uint8), [156, 255], [155, 0], "must be from 156 to 255"),
        (gym.spaces.MultiDiscrete([2, 3], start=[5, -1]), [[5, -1], [6, 1]], [[5, 2], [4, 0], [1, 5]], "must be from"),
        (gym.spaces.MultiDiscrete([100], start=[156], dtype=np.uint8), [[156], [255]], [[155], [0]], "must be from 156 to 255"),
        (gym.spaces.MultiBinary(2), [[0, 1]], [[0, 2], [-1, 0]], "must be from 0 to 1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, gym.Space) else "",
)
def test_what_no_element_of_the_space_is_gets_no_answer(tmp_path: Path, space: Any, inside: Any, outside: Any, said: str) -> None:
    """A one-hot vector of it would be all zeros, which no episode ever showed the network."""
    agent = DQN(lambda: Numbered(space), learning_starts=20, hidden_sizes=[8], env_kwargs={"wrappers": ["flatten"]}, **small(tmp_path))
    agent.learn(30)
    policy = OnnxPolicy.load(agent.export(tmp_path / "policy.onnx"))
    for obs in inside:
        assert policy.answer(obs)[0]["action"] in (0, 1)
    for obs in outside:
        with pytest.raises(UserError, match=said):
            policy.answer(obs)


def test_ranges_that_are_all_the_same_are_one() -> None:
    """A list of 140,000 was larger than metadata may be."""
    policy = RawObservations(Numbered(gym.spaces.MultiDiscrete([2] * 140_000)), [])
    assert policy.parts[0].ranges == ((0, 1),)
    with pytest.raises(UserError, match="must be from 0 to 1, got 2"):
        policy.parts[0].read([0] * 139_999 + [2])


@pytest.fixture
def policy(cli: Cli, trained: Path) -> onnx.ModelProto:
    export_policy(trained, "policy.onnx")
    return onnx.load("policy.onnx")


def no_metadata(model: Any) -> None:
    model.ClearField("metadata_props")


def other_metadata(key: str, value: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        next(entry for entry in model.metadata_props if entry.key == key).value = value

    return change


def without_output(model: Any) -> None:
    del model.graph.output[1]


def outside_weights(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")


def a_loop(model: Any) -> None:
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("If", ["obs"], ["never"], then_branch=body, else_branch=body))


def strange_operator(model: Any) -> None:
    model.graph.node[0].domain = "com.stranger"


def wider_input(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5


def other_input(model: Any) -> None:
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))


def flat_values(model: Any) -> None:
    """values of one number: what comes out is looked at too."""
    model.graph.output[1].name = "elsewhere"
    model.graph.node.append(helper.make_node("Constant", [], ["values"], value=numpy_helper.from_array(np.zeros((1, 1), np.float32))))
    model.graph.output[1].CopyFrom(helper.make_tensor_value_info("values", TensorProto.FLOAT, [1, 1]))
    for node in model.graph.node[:-1]:
        node.output[:] = ["elsewhere" if name == "values" else name for name in node.output]
        node.input[:] = ["elsewhere" if name == "values" else name for name in node.input]


PART = {"input": "obs", "entry": [], "shape": [4], "dtype": "float32"}
FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "no metadata": (no_metadata, "no policy that rl-training exported"),
    "another format": (other_metadata("format", "1"), "format '1'"),
    "no spaces": (other_metadata("spaces", "{}"), "spaces.obs_shape"),
    "no JSON": (other_metadata("spaces", "{" * 5000), "no JSON"),
    "huge spaces": (other_metadata("spaces", '{"obs_shape": [99999999999], "obs_dtype": "float32", "action": {"kind": "box"}}'), "spaces"),
    "no output": (without_output, "has no output values"),
    "weights elsewhere": (outside_weights, "weights in other files"),
    "a branch": (a_loop, "no branches or loops"),
    "an operator": (strange_operator, "com.stranger"),
    "a wider input": (wider_input, "onnxruntime cannot run it"),
    "other observations": (other_metadata("observation", json.dumps([{**PART, "shape": [3]}])), "its input obs is"),
    "no observations": (other_metadata("observation", "[]"), "observation in its metadata cannot be read"),
    "observations of a strange kind": (other_metadata("observation", json.dumps([{**PART, "dtype": "object"}])), "cannot be read"),
    "two observations of one name": (other_metadata("observation", json.dumps([PART, PART])), "names the inputs obs, obs"),
    "a huge observation": (other_metadata("observation", json.dumps([{**PART, "shape": [10**8, 10]}])), "elements"),
    "a part of a strange key": (
        other_metadata("observation", json.dumps([{**PART, "dtyp": "uint8"}])),
        "observation in its metadata cannot be read (0.dtyp is no key of an observation's part",
    ),
    "observations that are no JSON": (other_metadata("observation", "[{"), "observation in its metadata is no JSON"),
    "ranges that no number is in": (
        other_metadata("observation", json.dumps([{**PART, "ranges": [[5, -5]]}])),
        "ranges must go from the least value to the most, got [5, -5]",
    ),
    "ranges of no number": (other_metadata("observation", json.dumps([{**PART, "ranges": [[0, 1]] * 3}])), "ranges must be one, or 4"),
    "ranges beyond all numbers": (other_metadata("observation", json.dumps([{**PART, "ranges": [[0, 10**30]]}])), "cannot be read"),
    "a long list of ranges": (other_metadata("observation", json.dumps([{**PART, "ranges": [[0, 1]] * 200_000}])), "characters"),
    "another input": (other_input, "which are not those of a policy"),
    "other values": (flat_values, "not of the shapes of a policy's"),
}


def test_a_strangers_file_is_refused_in_one_line(cli: Cli, policy: onnx.ModelProto) -> None:
    for fault, (change, said) in FAULTS.items():
        changed = onnx.ModelProto()
        changed.CopyFrom(policy)
        change(changed)
        Path("other.onnx").write_bytes(changed.SerializeToString())
        assert said in cli.refused("predict", "--onnx", "other.onnx", json.dumps(A)), fault


def test_what_is_no_file_of_ours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.onnx").write_text("not a model")
    Path("empty.onnx").touch()
    os.mkfifo("pipe.onnx")
    for file in ("text.onnx", "empty.onnx", "pipe.onnx", "missing.onnx", "."):
        assert file in cli.refused("predict", "--onnx", file, json.dumps(A))
    monkeypatch.setattr("rl_training.exchange.onnx_policy.MAX_BYTES", 3)
    assert "larger than the 3 bytes" in cli.refused("predict", "--onnx", "text.onnx", json.dumps(A))


def play(file: Path) -> str:
    """What examples/onnx_policy.py says where neither torch nor this package can be imported."""
    block = "import sys, runpy; sys.modules['torch'] = sys.modules['rl_training'] = None; sys.argv = sys.argv[1:]; "
    command = [sys.executable, "-c", block + "runpy.run_path(sys.argv[0], run_name='__main__')", str(ROOT / "examples" / "onnx_policy.py")]
    done = subprocess.run(
        [*command, str(file), "--episodes", "2", "--seed", "5"], capture_output=True, text=True, check=False, cwd=file.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_needs_no_torch(tmp_path: Path) -> None:
    agent = DRQN("CartPole-v1", learning_starts=20, features_dim=8, recurrent_hidden_size=8, hidden_sizes=[], **small(tmp_path))
    agent.learn(30)
    said = play(agent.export(tmp_path / "policy.onnx"))
    assert said.startswith("row: drqn, environment: CartPole-v1, wrappers to apply: none\n") and said.count("return ") == 2


SCREEN = """
import gymnasium as gym
import numpy as np


class Screen(gym.Env):
    observation_space = gym.spaces.Dict({"image": gym.spaces.Box(0, 255, (8, 8), np.uint8), "clock": gym.spaces.Discrete(9)})
    action_space = gym.spaces.Discrete(3)

    def action_masks(self):
        return np.arange(3) == self.clock % 3

    def look(self):
        return {"image": np.full((8, 8), self.clock, np.uint8), "clock": self.clock}

    def reset(self, *, seed=None, options=None):
        self.clock = 0
        return self.look(), {}

    def step(self, action):
        assert self.action_masks()[action]
        self.clock += 1
        return self.look(), 1.0, self.clock == 5, False, {}


gym.register("Screen-v0", entry_point=Screen)
"""


def test_the_example_takes_an_image_of_a_dict_stacks_it_and_asks_for_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "screens.py").write_text(SCREEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wrapped = {"wrappers": [{"select": {"key": "image"}}], "frame_stack": 3}
    agent = DQN("screens:Screen-v0", learning_starts=20, hidden_sizes=[8], batch_size=8, env_kwargs=wrapped, **small(tmp_path))
    agent.learn(30)
    assert play(agent.export(tmp_path / "policy.onnx")).count("return 5") == 2
