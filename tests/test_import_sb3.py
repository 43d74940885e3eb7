"""`import-sb3`: Stable-Baselines3's weights give Stable-Baselines3's Q-values here, and a stranger's zip runs nothing.

tests/data holds two small models that SB3 saved, and its answers (benchmarks/sb3_import.py wrote them; it compares more of them there).
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import Cli
from rl_training import DQN, QRDQN
from rl_training.errors import CheckpointError
from rl_training.exchange import sb3
from rl_training.runtime.workflows import load_policy

DATA = Path(__file__).resolve().parent / "data"
ANSWERS = json.loads((DATA / "sb3_q_values.json").read_text())


@pytest.mark.numeric
@pytest.mark.parametrize(("name", "row", "activation"), [("sb3_dqn", DQN, "relu"), ("sb3_qr_dqn", QRDQN, "tanh")])
def test_the_q_values_are_theirs(cli: Cli, name: str, row: Any, activation: str) -> None:
    done = cli("import-sb3", str(DATA / f"{name}.zip"), "-o", "agent", "--env", "CartPole-v1")
    assert (done.code, done.out, done.err) == (0, "agent\n", "")
    agent = row.load("agent")
    assert agent.config.settings.activation == activation  # the zip says it in words
    obs, expected = (np.array(ANSWERS[name][key], np.float32) for key in ("obs", "q_values"))
    found, _ = load_policy("agent").q_values(obs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(agent.predict(obs)[0], expected.argmax(-1))
    assert cli("eval", "--checkpoint", "agent", "--episodes", "1").code == 0
    assert cli("export", "--checkpoint", "agent", "-o", "policy.pt2").code == 0
    # replaced by a later import, and never by one that fails
    assert cli("import-sb3", str(DATA / f"{name}.zip"), "-o", "agent", "--env", "CartPole-v1").code == 0


def test_there_is_no_training_to_resume(cli: Cli) -> None:
    assert cli("import-sb3", str(DATA / "sb3_dqn.zip"), "-o", "agent", "--env", "CartPole-v1").code == 0
    assert "holds weights alone (Stable-Baselines3 2." in cli.refused("resume", "--checkpoint", "agent")
    with pytest.raises(CheckpointError, match=r"^agent: holds weights alone"):
        DQN.load("agent").learn(10)


def torch_bytes(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def layers(*sizes: int, prefix: str = "q_net.q_net") -> dict[str, torch.Tensor]:
    """A network as SB3 names it, the target beside it."""
    generator, tensors = torch.Generator().manual_seed(0), {}
    for whole in (prefix, prefix.replace("net.", "net_target.", 1)):
        for index in range(len(sizes) - 1):
            tensors[f"{whole}.{2 * index}.weight"] = torch.randn(sizes[index + 1], sizes[index], generator=generator)
            tensors[f"{whole}.{2 * index}.bias"] = torch.randn(sizes[index + 1], generator=generator)
    return tensors


def write(file: str = "model.zip", *, data: Any = None, policy: Any = None, **members: bytes) -> str:
    """A zip in SB3's layout; `data` and `policy` are what they hold, or their bytes."""
    data = {"policy_kwargs": {}, "num_timesteps": 40, "gamma": 0.9} if data is None else data
    policy = layers(4, 3, 2) if policy is None else policy
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("data", data if isinstance(data, bytes) else json.dumps(data))
        made.writestr("policy.pth", policy if isinstance(policy, bytes) else torch_bytes(policy))
        for name, content in members.items():
            made.writestr(name.replace("__", "/"), content)
    return file


def refused(cli: Cli, file: str, *more: str) -> str:
    return cli.refused("import-sb3", file, "-o", "agent", "--env", "CartPole-v1", *more)


def imported(cli: Cli, file: str, env_id: str, *more: str) -> Any:
    done = cli("import-sb3", file, "-o", "agent", "--env", env_id, *more)
    assert done.code == 0, done.err
    return load_policy("agent")


def by_hand(tensors: dict[str, torch.Tensor], prefix: str, obs: Any, activation: Any) -> Any:
    x, count = torch.as_tensor(obs), sum(name.startswith(f"{prefix}.") for name in tensors) // 2
    for index in range(count):
        x = x @ tensors[f"{prefix}.{2 * index}.weight"].T + tensors[f"{prefix}.{2 * index}.bias"]
        x = activation(x) if index < count - 1 else x
    return x.numpy()


@pytest.mark.numeric
def test_sizes_activation_and_environment_are_what_was_said(cli: Cli) -> None:
    obs = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    tensors = layers(4, 7, 5, 3, 2)
    policy = imported(cli, write(policy=tensors), "CartPole-v1", "--activation", "tanh")
    np.testing.assert_allclose(policy.q_values(obs)[0], by_hand(tensors, "q_net.q_net", obs, torch.tanh), rtol=1e-4, atol=1e-5)
    assert policy.epsilon == 0.05  # ours: the zip said none

    linear = layers(4, 2)
    policy = imported(cli, write(policy=linear, data={"exploration_final_eps": 0.25}), "CartPole-v1")
    np.testing.assert_allclose(policy.q_values(obs)[0], by_hand(linear, "q_net.q_net", obs, None), rtol=1e-4, atol=1e-5)
    assert policy.epsilon == 0.25

    one_hot = layers(16, 5, 4)  # SB3 makes FrozenLake's 16 states one-hot by itself
    policy = imported(cli, write(policy=one_hot), "FrozenLake-v1")
    states = np.eye(16, dtype=np.float32)
    np.testing.assert_allclose(policy.q_values(states)[0], by_hand(one_hot, "q_net.q_net", states, torch.relu), rtol=1e-4, atol=1e-5)


@pytest.mark.numeric
def test_quantiles_stand_in_the_other_order(cli: Cli) -> None:
    """SB3's last layer gives [quantiles, actions]: Q_a is the mean of every second output, not of each half."""
    obs = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    tensors = layers(4, 3, 3 * 2, prefix="quantile_net.quantile_net")
    quantiles = by_hand(tensors, "quantile_net.quantile_net", obs, torch.relu).reshape(6, 3, 2)
    policy = imported(cli, write(policy=tensors), "CartPole-v1")
    np.testing.assert_allclose(policy.q_values(obs)[0], quantiles.mean(1), rtol=1e-4, atol=1e-5)


class Trap:
    """Tells on whoever unpickles it."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("unpickled"),)


def test_nothing_is_unpickled(cli: Cli) -> None:
    assert "holds more than weights" in refused(cli, write(policy={"q_net.q_net.0.weight": Trap()}))
    assert "no zip file" in refused(cli, write(policy=pickle.dumps(Trap())))  # torch's old format is a bare pickle
    trap = {":type:": "<class 'dict'>", ":serialized:": base64.b64encode(pickle.dumps(Trap())).decode()}
    assert "give --activation" in refused(cli, write(data={"policy_kwargs": trap, "num_timesteps": trap}))
    imported(cli, write(data={"policy_kwargs": trap, "num_timesteps": trap}), "CartPole-v1", "--activation", "relu")
    assert not Path("unpickled").exists()


def test_what_does_not_fit_is_one_line(cli: Cli) -> None:
    assert "give --env" in cli.refused("import-sb3", write(), "-o", "agent")
    assert "gone.zip: cannot be read" in cli.refused("import-sb3", "gone.zip", "-o", "agent")  # what is no model is not asked about
    assert "reads 5 numbers, and CartPole-v1 gives [4]" in refused(cli, write(policy=layers(5, 3, 2)))
    assert "has 3 outputs, and CartPole-v1 has 2 actions" in refused(cli, write(policy=layers(4, 3)))
    assert "MlpPolicy" in refused(cli, write(policy={**layers(4, 2), "q_net.features_extractor.cnn.0.weight": torch.zeros(1)}))
    assert "no policy of DQN or QR-DQN" in refused(cli, write(policy={"mlp_extractor.policy_net.0.weight": torch.zeros(2, 2)}))
    assert "not one of" in refused(cli, write(), "--activation", "gel")
    assert "give --activation" in refused(
        cli, write(data={"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.Foo'>"}})
    )
    assert "no policy.pth" in refused(cli, write_without("policy.pth"))
    assert "no JSON" in refused(cli, write(data=b"{" * 100_000))
    assert "no JSON object" in refused(cli, write(data=[1]))
    assert "nosuch" in cli.refused("import-sb3", write(), "-o", "agent", "--env", "nosuch-v0")
    Path("full").mkdir()
    Path("full/mine.txt").touch()
    assert "exists and is no checkpoint" in cli.refused("import-sb3", write(), "-o", "full", "--env", "CartPole-v1")
    for file in ("missing.zip", "full"):
        assert "cannot be read" in refused(cli, file)


def write_without(name: str) -> str:
    with zipfile.ZipFile(write()) as whole, zipfile.ZipFile("less.zip", "w") as made:
        for entry in whole.infolist():
            if entry.filename != name:
                made.writestr(entry.filename, whole.read(entry))
    return "less.zip"


def test_a_hostile_zip_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = {**layers(4, 2), "q_net.q_net.0.bias": torch.tensor([float("nan"), 0.0])}
    assert "not finite" in refused(cli, write(policy=nan))
    assert "no plain tensor" in refused(cli, write(policy={**layers(4, 2), "q_net.q_net.0.weight": torch.zeros(1).expand(2, 4)}))
    assert "no plain tensor" in refused(cli, write(policy={**layers(4, 2), "q_net.q_net.0.weight": torch.zeros(2, 4, dtype=torch.int8)}))
    assert "odd name" in refused(cli, write(**{"..__up": b""}))
    Path("text.zip").write_text("no zip")
    assert "no zip file" in refused(cli, "text.zip")

    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(write(), "a") as twice:
        twice.writestr("data", "{}")
    assert "a name twice" in refused(cli, "model.zip")

    whole = bytearray(Path(write()).read_bytes())
    end = whole.rindex(b"PK\x05\x06")
    whole[end + 12 : end + 16] = struct.pack("<I", 1 << 28)
    Path("large.zip").write_bytes(whole)
    assert "table of contents" in refused(cli, "large.zip")

    monkeypatch.setattr(sb3, "MAX_DATA", 50)
    assert "its data is larger" in refused(cli, write(data=b" " * 60))
    monkeypatch.setattr(sb3, "MAX_BYTES", 10_000)
    with zipfile.ZipFile("bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("policy.pth", bytes(1_000_000))
    assert "unfolds to more" in refused(cli, "bomb.zip")
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data/0", bytes(1_000_000))
    monkeypatch.setattr(sb3, "MAX_DATA", 5_000)
    assert "its policy.pth: unfolds to more" in refused(cli, write(policy=inner.getvalue()))


def test_our_agents_are_called_as_sb3_calls_its_own() -> None:
    """As `stable_baselines3.common.evaluation.evaluate_policy` does: a batch, by keyword, the state handed back as it came.

    benchmarks/sb3_import.py calls that function itself.
    """
    from rl_training import DRQN, PPO

    for agent in (DQN("CartPole-v1", hidden_sizes=[8]), DRQN("CartPole-v1", features_dim=8, recurrent_hidden_size=8), PPO("Pendulum-v1")):
        shape = (4,) if agent.config.env_id == "CartPole-v1" else (3,)
        states, episode_starts = None, np.ones((2,), dtype=bool)
        for step in range(3):
            observations = np.full((2, *shape), 0.1 * step, np.float32)
            actions, states = agent.predict(observations, state=states, episode_start=episode_starts, deterministic=True)
            assert isinstance(actions, np.ndarray) and len(actions) == 2
            episode_starts = np.array([False, step == 1])
