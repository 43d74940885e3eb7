"""What `auto` resolves to, from what the network says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.errors import ConfigError
from rl_training.experiment.registry import register_algorithm
from rl_training.models import Facts
from rl_training.resources import usable_cores
from rl_training.runtime import devices, trainer_setup
from rl_training.runtime.devices import LARGE_MLP, Resources, lacks_bf16, resolve, resolve_precision
from value_rows import config_of

MLP = Facts(10_000, recurrent=False, convolutional=False)
LARGE = MLP._replace(parameters=LARGE_MLP)
RECURRENT = MLP._replace(recurrent=True)
IMAGES = MLP._replace(convolutional=True)


def resolved(facts: Facts, **asked: Any) -> Resources:
    return resolve(facts, **{"device": "auto", "threads": "auto", "compile": "auto", "planned_updates": 10**6, **asked})


@pytest.mark.parametrize(("facts", "device"), [(MLP, "cpu"), (LARGE, "cuda"), (RECURRENT, "cuda"), (IMAGES, "cuda")])
def test_a_gpu_is_taken_by_a_network_that_is_worth_it(monkeypatch: pytest.MonkeyPatch, facts: Facts, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved(facts).device == ("cpu", "torch sees no GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = resolved(facts)
    assert found.device.value == device
    assert resolved(facts, device="cpu").device == ("cpu", "as configured")
    assert resolved(facts, device="cuda").device == ("cuda", "as configured")


@pytest.mark.parametrize(("facts", "threads"), [(MLP, "1"), (LARGE, "3"), (RECURRENT, "3"), (IMAGES, "3")])
def test_threads(monkeypatch: pytest.MonkeyPatch, facts: Facts, threads: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert resolved(facts, device="cpu").threads.value == threads
    assert resolved(facts, device="cpu", threads=5).threads == ("5", "as configured")
    monkeypatch.delenv("OMP_NUM_THREADS")
    for cores, most in ((64, "8"), (2, "2")):
        monkeypatch.setattr("rl_training.runtime.devices.usable_cores", lambda cores=cores: cores)
        assert resolved(facts, device="cpu").threads.value == ("1" if facts is MLP else most)


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under `taskset`, or in a container with a share of the machine, a thread for each of its cores would wait for the others."""
    own, above = tmp_path / "above" / "own", tmp_path / "above"
    own.mkdir(parents=True)
    monkeypatch.setattr("rl_training.resources._cgroups", lambda: iter((own, above, tmp_path)))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert usable_cores() == 6
    (own / "cpu.max").write_text("max 100000\n")
    (above / "cpu.max").write_text("450000 100000\n")  # four and a half cores
    assert usable_cores() == 4
    (own / "cpu.max").write_text("50000 100000\n")  # half a core is still one thread
    assert usable_cores() == 1


@pytest.mark.parametrize(("facts", "precision"), [(MLP, "float32"), (LARGE, "float32"), (RECURRENT, "tf32"), (IMAGES, "tf32")])
def test_tf32_is_for_what_cudnn_computes_so_anyway(monkeypatch: pytest.MonkeyPatch, facts: Facts, precision: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolved(facts, device="cuda").precision.value == precision
    assert resolved(facts, device="cpu").precision.value == "float32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for asked in ("float32", "tf32", "bf16"):
        assert resolved(facts, device="cuda", precision=asked).precision == (asked, "as configured")


def test_what_the_cpu_does_not_compute_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for facts in (MLP, RECURRENT, IMAGES):
        with pytest.raises(ConfigError, match="precision: tf32 is a GPU's; this run computes on cpu: use auto or float32"):
            resolved(facts, device="cpu", precision="tf32")
    for facts in (MLP, RECURRENT):
        with pytest.raises(ConfigError, match="precision: bf16 on the CPU is for convolutions, and this network has none: use auto"):
            resolved(facts, device="cpu", precision="bf16")
    with pytest.raises(ConfigError, match="precision: bf16 is a GPU's; this run computes on mps"):
        resolve_precision("bf16", "mps", IMAGES)
    monkeypatch.setattr(devices, "lacks_bf16", lambda: False)
    for asked in ("float32", "bf16"):
        assert resolved(IMAGES, device="cpu", precision=asked).precision == (asked, "as configured")


def test_a_processor_without_bfloat16_is_warned_of(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    """It computes bfloat16 by way of float32 then, up to eight times as slowly. Of what torch cannot tell nothing is said."""
    can = {"_is_avx512_bf16_supported": False, "_is_amx_tile_supported": False}
    for name in can:
        monkeypatch.setattr(torch.cpu, name, lambda name=name: can[name], raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert lacks_bf16()
    for name in can:
        assert not [can.update({name: True}), lacks_bf16(), can.update({name: False})][1]
    with pytest.warns(UserWarning, match="bf16 is slower than float32 on this processor"):
        assert resolved(IMAGES, device="cpu", precision="bf16").precision == ("bf16", "as configured")
    recwarn.clear()
    resolved(IMAGES, device="cpu", precision="float32")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    resolved(IMAGES, device="cpu", precision="bf16")
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert not lacks_bf16() and not recwarn.list


def test_a_gpu_without_bfloat16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    with pytest.raises(ConfigError, match="bf16 cannot be had on an old one"):
        resolved(IMAGES, device="cuda", precision="bf16")


def test_cores_are_not_compiled_unasked_and_convolutions_are() -> None:
    found, images = (resolved(facts, device="cpu").compile for facts in (RECURRENT, IMAGES))
    assert found.value == "off" and ("LSTM" in found.why or "compiler" in found.why)
    assert images == resolved(MLP, device="cpu").compile


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device, said in (("cuda", "torch sees no GPU"), ("cuda:1", "torch sees no GPU"), ("mps", "torch has no such device here")):
        with pytest.raises(ConfigError, match=f"device {device} was asked for, but {said}"):
            resolved(MLP, device=device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolved(MLP, device="cuda:1").device.value == "cuda:1"
    for beyond in ("cuda:2", "cuda:200", "cuda:256"):  # torch.device takes the last two for -56 and 0
        with pytest.raises(ConfigError, match=f"device {beyond} was asked for, but torch sees 2 GPUs, counted from cuda:0"):
            resolved(MLP, device=beyond)


def test_a_network_is_built_once_and_closes_its_environments_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[torch.Tensor] = []

    def network(settings: Any, spaces: Any) -> torch.nn.Module:
        assert torch.get_num_threads() == 1  # so that the seed alone decides
        drawn = torch.rand(1)
        if drawn.is_meta:  # counted before it is allocated
            return torch.nn.Linear(4, 2)
        built.append(drawn)
        if len(built) > 2:
            raise RuntimeError("no such network")
        return torch.nn.Linear(4, 2)

    monkeypatch.setattr("rl_training.experiment.registry._TABLE", {})
    register_algorithm("dqn", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=network, summary="plain")
    before = torch.get_rng_state()
    first, second = (trainer_setup.prepare(config_of("dqn"), None) for _ in range(2))
    assert len(built) == 2 and torch.equal(built[0], built[1]) and torch.equal(before, torch.get_rng_state())
    assert first.network is not second.network and first.notes["precision"] == "float32 (what parameters and losses are held in)"
    closed: list[bool] = []
    monkeypatch.setattr("rl_training.envs.vector.VectorEnvs.close", lambda self: closed.append(True))
    with pytest.raises(RuntimeError, match="no such network"):
        trainer_setup.prepare(config_of("dqn"), None)
    assert closed == [True]
