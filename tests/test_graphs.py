"""What CUDA graphs replay, run here without capture: the same functions on the CPU, over replay that lives in tensors as on a GPU.

benchmarks/gpu.py checks the captured form against eager code on a real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.schedules import LinearSchedule
from rl_training.data import sampled_ring, samplers, storage
from rl_training.data.storage import Field, RingStorage
from rl_training.runtime import accelerate
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import SampledUpdates
from rl_training.runtime.workflows import train
from rl_training.speed.graphs import GraphedForward, GraphedUpdates
from rl_training.speed.streams import on_streams
from value_rows import LEARNED, ROWS, config_of, parts_of

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # the learning rate is a float32 tensor here


@pytest.fixture(autouse=True)
def replay_in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage and samplers as they are off the CPU."""
    for module in (storage, sampled_ring, samplers):
        monkeypatch.setattr(module, "uses_numpy", lambda device: False)


def beta_of(algo: str) -> Any:
    return LinearSchedule(0.4, 1.0, 100) if algo in ("prioritized_dqn", "rainbow_dqn", "btr", "r2d2") else None


@pytest.mark.parametrize("algo", ROWS)
def test_a_graphed_update_is_the_eager_one(algo: str) -> None:
    one, other = parts_of(algo), parts_of(algo)
    eager = SampledUpdates(one.learner, one.replay, 16, beta_of(algo))
    graphed = GraphedUpdates(other.learner, other.replay, 16, beta_of(algo), CPU)
    for step in range(1, 101):
        theirs, mine = eager(step).metrics, graphed(step).metrics
        if step % 20 == 0:
            assert list(mine) == list(theirs)
            torch.testing.assert_close(dict(mine), {name: value.detach() for name, value in theirs.items()}, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(other.learner.last_priorities, one.learner.last_priorities, rtol=1e-4, atol=1e-5)
    mine, theirs = other.learner.state_dict(), one.learner.state_dict()
    for part, tolerance in (("q_network", LEARNED), ("target_network", LEARNED), ("optimizer", CLOSE)):
        torch.testing.assert_close(mine[part], theirs[part], **tolerance)
    assert other.learner.last_step == one.learner.last_step == 100
    torch.testing.assert_close(other.replay.state_dict()["sampler"], one.replay.state_dict()["sampler"], rtol=1e-3, atol=1e-5)


def test_metrics_of_an_older_update_are_refused_not_mixed_up() -> None:
    parts = parts_of("dqn")
    updates = GraphedUpdates(parts.learner, parts.replay, 16, None, CPU)
    first = updates(1)
    kept = first.metrics["loss"]
    assert torch.isfinite(kept)
    updates(2)
    with pytest.raises(RuntimeError, match="before the next update"):
        first.metrics["loss"]


@pytest.mark.parametrize("algo", ["noisy_dqn", "iqn", "drqn"])
def test_a_graphed_pass_is_the_eager_one(algo: str) -> None:
    network = parts_of(algo).network
    rng = np.random.default_rng(0)
    state, generator, same = network.initial_state(5), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    mine = state
    forward = GraphedForward(network, np.zeros((5, 4), np.float32), state, generator, device=CPU)
    for _ in range(4):
        obs, starts = rng.standard_normal((5, 4), dtype=np.float32), rng.random(5) < 0.4
        with torch.no_grad():
            q_values, state = network.step(torch.from_numpy(obs), state, torch.from_numpy(starts), network.draw(same, (5,), "acting"))
        before = tuple(x.clone() for x in mine)
        given = mine
        outputs, mine = forward(obs, mine, starts)
        np.testing.assert_allclose(outputs, q_values.numpy(), rtol=1e-6)
        torch.testing.assert_close(mine, state)
        torch.testing.assert_close(given, before, rtol=0, atol=0)  # the replay may still hold the state before


class Order(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_step(self, run: Any, step: Any) -> None:
        self.seen.append(("step", run.clock.env_steps))

    def on_update(self, run: Any, result: Any) -> None:
        self.seen.append(("update", run.clock.env_steps))

    def on_checkpoint(self, run: Any, path: Any) -> None:
        self.seen.append(("checkpoint", run.clock.env_steps))


def run_graphed(monkeypatch: pytest.MonkeyPatch, output: Path, **changes: Any) -> tuple[Any, Order]:
    """A run as on a GPU: graphed updates and actions, updates queued while the environments step."""

    def graphed(updates: SampledUpdates, **_: Any) -> GraphedUpdates:
        return GraphedUpdates(updates.learner, updates.replay, updates.batch_size, updates.beta, CPU)

    monkeypatch.setattr("rl_training.runtime.value_based.accelerate_updates", graphed)
    monkeypatch.setattr(
        "rl_training.runtime.value_based.accelerate_acting",
        lambda actor, device, **_: actor.use_forward(lambda *parts: GraphedForward(*parts, device=CPU)),
    )
    order = Order()
    config = config_of(
        changes.pop("algo", "dqn"), output_dir=str(output), compile=False, eval_interval=0, eval_episodes=1, log_interval=0, **changes
    )
    return train(config, callbacks=[order]), order


@pytest.mark.parametrize("algo", ["rainbow_dqn", "r2d2"])
def test_a_run_trains_with_graphs(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = run_graphed(monkeypatch, tmp_path, algo=algo, total_timesteps=200, checkpoint_interval=100)
    assert result.metrics["num_updates"] > 100


def test_updates_are_queued_while_environments_step_and_never_missing_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, order = run_graphed(
        monkeypatch, tmp_path, total_timesteps=100, checkpoint_interval=80, num_envs=1, algo_kwargs={"train_frequency": 10}
    )
    # Rounds at 50, 60, …, 100 (learning starts at 50). Each is made after the next actions are chosen, when the clock still shows its step;
    # those of 80 (a checkpoint is due) and 100 (the end) at once. `on_step` comes after them in both cases.
    updates = [index for index, (what, _) in enumerate(order.seen) if what == "update"]
    assert [order.seen[index][1] for index in updates] == [50, 60, 70, 80, 90, 100]
    assert result.metrics["num_updates"] == 6
    after = {order.seen[index][1]: order.seen[index - 1] for index in updates}
    assert after[60] == ("step", 60) and after[80] == ("step", 79) and after[100] == ("step", 99)
    assert order.seen.index(("checkpoint", 80)) > order.seen.index(("update", 80))


def test_a_checkpoint_that_a_callback_asks_for_has_the_queued_updates_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks(Order):
        def on_step(self, run: Any, step: Any) -> None:
            super().on_step(run, step)
            if run.clock.env_steps == 70:
                run.save_soon()

        def on_checkpoint(self, run: Any, path: Any) -> None:
            super().on_checkpoint(run, path)
            self.seen.append(("updates", run.clock.updates))

    monkeypatch.setattr("test_graphs.Order", Asks)
    _, order = run_graphed(
        monkeypatch, tmp_path, total_timesteps=100, checkpoint_interval=0, num_envs=1, algo_kwargs={"train_frequency": 10}
    )
    at = order.seen.index(("checkpoint", 70))
    assert order.seen[at - 1] == ("update", 70) and order.seen[at + 1] == ("updates", 3)  # those of 50, 60 and 70


def test_staging_hands_out_rows_that_arrive_whole() -> None:
    fields = {"x": Field((3,), torch.float32), "n": Field((), torch.int64)}
    ring = RingStorage(50, fields, "cpu")
    ring._staging.BYTES = 0
    ring._staging._allocate(4)  # goes around often, and is too small for some adds
    rng = np.random.default_rng(0)
    expected: list[tuple[Any, int]] = []
    for start in range(0, 120, 1):
        count = int(rng.integers(1, 8))
        x, n = rng.standard_normal((count, 3), dtype=np.float32), np.arange(start, start + count)
        ring.add({"x": x, "n": n}, count)
        expected += list(zip(x, n, strict=True))
    batch: dict[str, torch.Tensor] = {}
    ring.gather(torch.arange(50), batch)
    rows: dict[str, torch.Tensor] = {}
    ring.gather_rows(torch.arange(50), rows)
    torch.testing.assert_close(ring.unpack(rows), batch, rtol=0, atol=0)
    newest = sorted(((int(n), tuple(x.tolist())) for x, n in expected[-50:]))
    assert sorted((int(n), tuple(x.tolist())) for x, n in zip(batch["x"], batch["n"], strict=True)) == newest


def test_updates_are_graphed_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []
    monkeypatch.setattr("rl_training.speed.graphs.GraphedUpdates", lambda *parts: made.append(parts[4]) or "graphed")
    parts = parts_of("dqn")
    cuda = torch.device("cuda")
    silent: Any = lambda what, text: None  # noqa: E731
    updates = SampledUpdates(parts.learner, parts.replay, 8, None)
    assert accelerate.accelerate_updates(updates, device=cuda, compile=True, say=silent) == "graphed"
    for device, on in ((cuda, False), (CPU, False)):
        assert accelerate.accelerate_updates(updates, device=device, compile=on, say=silent) is updates
    assert made == [cuda]


def test_streams_are_plain_order_where_nothing_is_captured() -> None:
    # Only inside a CUDA graph's capture do they fork; benchmarks/gpu.py compares graphs with eager code, bit for bit.
    done: list[int] = []
    passes = [lambda i=i: done.append(i) or i for i in range(3)]
    assert on_streams(*passes) == [0, 1, 2] and done == [0, 1, 2]
