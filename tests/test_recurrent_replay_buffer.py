"""Chunks of episodes: closed forms for every kind of ending, and a naive per-episode layout under random streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import PrioritizedRecurrentReplayBuffer, RecurrentReplayBuffer
from rl_training.data.sequences import ChunkLayout
from rl_training.data.storage import Field
from rl_training.types import Step

LAYERS, HIDDEN = 2, 3


def state_of(obs: float) -> tuple[np.ndarray, np.ndarray]:
    """The recurrent state before `obs`, recognisable: h = obs + 1000·layer, c = −h."""
    h = obs + 1000.0 * np.arange(LAYERS)[:, None] + np.zeros((LAYERS, HIDDEN))
    return h.astype(np.float32), -h.astype(np.float32)


def make(length: int, *, capacity: int = 4000, num_envs: int = 1, overlap: int = 0, burn_in: int = 0, **options: Any) -> Any:
    return RecurrentReplayBuffer(capacity, num_envs, (1,), length, HIDDEN, LAYERS, overlap, burn_in=burn_in, **options)


def play(buffer: Any, steps: int, *, first: float = 1.0, end: str = ".", env_index: int = 0) -> None:
    """Observations first, first + 1, …; action and reward are 10 and 100 times the observation; `end` of the last step: T, L or `.`."""
    for i in range(steps):
        obs, last = first + i, i == steps - 1
        buffer.add(
            env_index=env_index,
            obs=[obs],
            actions=int(obs) * 10,
            rewards=obs * 100,
            next_obs=[obs + 1],
            dones=last and end == "T",
            episode_start=i == 0,
            initial_state=state_of(obs),
            truncated=last and end == "L",
        )


def chunks(buffer: Any) -> list[dict[str, Any]]:
    """Every stored chunk, oldest first, straight from the ring's slots, in the form `sample` gives them."""
    size = len(buffer)
    raw: dict[str, torch.Tensor] = {}
    buffer._ring.storage.gather(np.arange(size), raw)
    batch = buffer._time_first(raw)
    return [{key: value[:, i] for key, value in batch.items()} for i in range(size)]


def column(chunk: dict[str, Any], key: str) -> list[float]:
    return chunk[key].reshape(-1).tolist()


def test_an_episode_is_cut_into_chunks_and_its_last_one_is_kept() -> None:
    buffer = make(3)
    play(buffer, 5, end="T")
    first, last = chunks(buffer)
    assert column(first, "obs") == [1, 2, 3] and column(first, "next_obs") == [2, 3, 4]
    assert column(first, "actions") == [10, 20, 30] and column(first, "rewards") == [100, 200, 300]
    assert column(first, "mask") == [1, 1, 1] and column(first, "dones") == [0, 0, 0] and column(first, "episode_starts") == [1, 0, 0]
    # steps 4 and 5, then padding; the observation after the last valid step is its true next_obs 6, at obs[2] = next_obs[1]
    assert column(last, "obs") == [4, 5, 6] and column(last, "next_obs") == [5, 6, 0]
    assert column(last, "actions") == [40, 50, 0] and column(last, "rewards") == [400, 500, 0]
    assert column(last, "mask") == [1, 1, 0] and column(last, "dones") == [0, 1, 0] and column(last, "episode_starts") == [0, 0, 0]


def test_the_initial_state_is_the_one_before_the_chunks_first_step() -> None:
    buffer = make(3)
    play(buffer, 5, end="T")
    for chunk, obs in zip(chunks(buffer), (1.0, 4.0), strict=True):
        h, c = state_of(obs)
        assert np.array_equal(chunk["initial_h"], h) and np.array_equal(chunk["initial_c"], c)


def test_truncation_closes_a_chunk_without_a_done() -> None:
    buffer = make(4)
    play(buffer, 2, end="L")
    (chunk,) = chunks(buffer)
    assert column(chunk, "dones") == [0, 0, 0, 0] and column(chunk, "mask") == [1, 1, 0, 0]
    assert column(chunk, "next_obs")[1] == 3  # what the last step bootstraps from


def test_an_episode_that_ends_with_its_chunk_leaves_nothing_open() -> None:
    buffer = make(4)
    play(buffer, 4, end="T")
    assert len(buffer) == 1 and buffer.num_transitions == 4
    assert column(chunks(buffer)[0], "dones") == [0, 0, 0, 1]


def test_chunks_never_cross_an_episode() -> None:
    buffer = make(4)
    play(buffer, 2, end="T")
    play(buffer, 3, first=50, end="L")
    play(buffer, 1, first=90, end="T")
    assert [column(chunk, "obs") for chunk in chunks(buffer)] == [[1, 2, 3, 0], [50, 51, 52, 53], [90, 91, 0, 0]]
    assert all(column(chunk, "episode_starts") == [1, 0, 0, 0] for chunk in chunks(buffer))


def test_an_episode_that_starts_before_the_last_one_ended_closes_it_as_truncated() -> None:
    buffer = make(4)
    play(buffer, 2)
    play(buffer, 1, first=50)
    (chunk,) = chunks(buffer)
    assert column(chunk, "obs") == [1, 2, 3, 0] and column(chunk, "mask") == [1, 1, 0, 0] and column(chunk, "dones") == [0] * 4


def test_an_episode_that_is_lost_ends_as_at_a_time_limit() -> None:
    buffer, maker = make(4, num_envs=2), make(4, num_envs=2).make_assembler()
    for t in (1.0, 2.0):  # of environment 1; the other one makes no step
        state = tuple(np.stack([part, part], axis=1) for part in state_of(t))
        obs, no = np.array([[0.0], [t]]), np.zeros(2, bool)
        step = Step(obs, np.zeros(2), np.zeros(2), obs + 1, no, no, np.full(2, t == 1), np.array([False, True]), state)
        assert maker.push(step) == {}
    assert maker.num_open == 2
    buffer.add_items(maker.drop([0, 1]))
    (chunk,) = chunks(buffer)
    assert column(chunk, "obs") == [1, 2, 3, 0] and column(chunk, "mask") == [1, 1, 0, 0] and column(chunk, "dones") == [0] * 4
    assert maker.drop([0, 1]) == {} and maker.num_open == 0


def test_overlapping_chunks_start_a_stride_apart() -> None:
    buffer = make(4, overlap=2)
    play(buffer, 7, end="T")
    # starts 1, 3, 5, 7; the last two are cut by the end
    assert [column(chunk, "obs") for chunk in chunks(buffer)] == [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8], [7, 8, 0, 0]]
    assert [column(chunk, "mask") for chunk in chunks(buffer)] == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    assert [column(chunk, "dones") for chunk in chunks(buffer)] == [[0] * 4, [0] * 4, [0, 0, 1, 0], [1, 0, 0, 0]]
    assert [float(chunk["initial_h"][0, 0]) for chunk in chunks(buffer)] == [1, 3, 5, 7]


def test_an_episodes_end_is_in_as_many_chunks_as_its_middle() -> None:
    # L 6, a chunk every 2: from step 5 on each step is in 3 chunks, the terminal one too, whichever slot it falls into
    for steps in (20, 21):
        buffer = make(6, overlap=4)
        play(buffer, steps, end="T")
        seen = [value for chunk in chunks(buffer) for value, on in zip(column(chunk, "obs"), column(chunk, "mask"), strict=True) if on]
        counts = [seen.count(1 + step) for step in range(steps)]
        assert counts[:4] == [1, 1, 2, 2] and set(counts[4:]) == {3}
        assert sum(sum(column(chunk, "dones")) for chunk in chunks(buffer)) == 3
        assert buffer.num_transitions == sum(counts)  # nothing is left open


def test_burn_in_pads_an_episodes_first_chunk_on_the_left() -> None:
    buffer = make(5, burn_in=2)  # 3 steps trained in each
    play(buffer, 7, end="T")
    a, b, c = chunks(buffer)
    # trained 1 2 3 from the state before 1; then 2 3 warm up 4 5 6; then 5 6 warm up 7
    assert column(a, "obs") == [0, 0, 1, 2, 3] and column(a, "next_obs") == [0, 1, 2, 3, 4]
    assert column(a, "mask") == [0, 0, 1, 1, 1] and column(a, "episode_starts") == [0, 0, 1, 0, 0]
    assert column(b, "obs") == [2, 3, 4, 5, 6] and column(b, "mask") == [0, 0, 1, 1, 1] and column(b, "episode_starts") == [0] * 5
    assert column(c, "obs") == [5, 6, 7, 8, 0] and column(c, "mask") == [0, 0, 1, 0, 0] and column(c, "dones") == [0, 0, 1, 0, 0]
    assert [float(chunk["initial_h"][0, 0]) for chunk in (a, b, c)] == [1, 2, 5]
    assert buffer.num_transitions == 3 + 5 + 3  # padding is no step


def test_burn_in_longer_than_an_episode() -> None:
    buffer = make(6, burn_in=4)
    play(buffer, 1, end="T")
    (chunk,) = chunks(buffer)
    assert column(chunk, "mask") == [0, 0, 0, 0, 1, 0] and column(chunk, "obs") == [0, 0, 0, 0, 1, 2]
    assert column(chunk, "dones") == [0, 0, 0, 0, 1, 0]


def test_burn_in_longer_than_the_trained_part_starts_the_episode_inside_the_prefix() -> None:
    # L 5, b 3, T 2, stride 2: trained [1 2], [3 4], [5 6]; before 3 there are two real steps, so one slot of its prefix stays empty
    buffer = make(5, burn_in=3)
    play(buffer, 6, end="T")
    a, b, c = chunks(buffer)
    assert column(a, "obs") == [0, 0, 0, 1, 2] and column(a, "episode_starts") == [0, 0, 0, 1, 0]
    assert column(b, "obs") == [0, 1, 2, 3, 4] and column(b, "episode_starts") == [0, 1, 0, 0, 0]
    assert column(c, "obs") == [2, 3, 4, 5, 6] and column(c, "episode_starts") == [0] * 5
    assert all(column(chunk, "mask") == [0, 0, 0, 1, 1] for chunk in (a, b, c))
    assert [float(chunk["initial_h"][0, 0]) for chunk in (a, b, c)] == [1, 1, 2]


def test_the_papers_proportions() -> None:
    # burn-in 40, 80 trained, a chunk every 40: the second chunk starts with the episode, trained from its step 40 on
    layout = ChunkLayout(120, burn_in=40, overlap=80)
    assert layout.stride == 40 and layout.second == 40
    assert ChunkLayout(5, burn_in=2).stride == 3  # an overlap below the burn-in would leave steps that no chunk trains
    assert ChunkLayout(9, burn_in=4, overlap=7).second == 4  # stride 2 would begin it before the episode


def test_a_chunk_with_no_trainable_step_is_not_stored() -> None:
    buffer = make(5, burn_in=2)
    play(buffer, 3, end="L")  # fills the first chunk and leaves steps 2, 3 as the next one's burn-in only
    assert len(buffer) == 1
    buffer.clear_active_chunks()
    for obs, last in ((10.0, False), (11.0, True)):  # joins an episode in the middle: two steps of burn-in, then its end
        buffer.add(
            env_index=0, obs=[obs], actions=0, rewards=0.0, next_obs=[obs + 1], dones=last, episode_start=False, initial_state=state_of(obs)
        )
    assert len(buffer) == 1 and buffer.num_transitions == 3


def test_clearing_open_chunks() -> None:
    buffer = make(4, num_envs=2)
    play(buffer, 3, env_index=0)
    play(buffer, 2, env_index=1)
    assert (len(buffer), buffer.num_transitions) == (0, 5)
    buffer.clear_active_chunks([0])
    assert buffer.num_transitions == 2
    buffer.clear_active_chunks()
    assert buffer.num_transitions == 0


def test_the_ring_keeps_the_newest_chunks() -> None:
    buffer = make(4, capacity=11)  # two chunks
    for first in (10, 20, 30):
        play(buffer, 3, first=first, end="T")
    assert len(buffer) == 2 and buffer.num_transitions == 6
    assert sorted(column(chunk, "obs")[0] for chunk in chunks(buffer)) == [20, 30]


def test_states_of_either_shape_and_tensors_are_taken() -> None:
    plain, other = make(2), make(2)
    play(plain, 4, end="T")
    for i in range(4):
        h, c = (torch.from_numpy(part)[:, None] for part in state_of(1.0 + i))
        obs = torch.tensor([1.0 + i])
        other.add(
            env_index=0,
            obs=obs,
            actions=torch.tensor(10 * (1 + i)),
            rewards=torch.tensor(100.0 * (1 + i)),
            next_obs=obs + 1,
            dones=torch.tensor(i == 3),
            episode_start=torch.tensor(i == 0),
            initial_state=(h, c),
        )
    for first, second in zip(chunks(plain), chunks(other), strict=True):
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("overlap", [0, 3])
def test_bytes_per_transition_is_what_a_checkpoint_holds(overlap: int) -> None:
    for kind in (RecurrentReplayBuffer, PrioritizedRecurrentReplayBuffer):
        buffer = kind(600, 1, (7,), 6, 16, 2, overlap)
        # (7 observations·7 floats)·4 + 6·(8 + 4 + 1) + 8·2 layers·16 + 24 = 196 + 78 + 256 + 24 = 554 bytes a chunk of 6: 70 words
        expected = 560 / 6 + (8 / 6 if kind is PrioritizedRecurrentReplayBuffer else 0)
        assert buffer.bytes_per_transition == pytest.approx(expected)
        for t in range(24):
            obs = np.full(7, t)
            state = (np.zeros((2, 16)), np.zeros((2, 16)))
            buffer.add(env_index=0, obs=obs, actions=0, rewards=0, next_obs=obs, dones=t == 23, episode_start=t == 0, initial_state=state)
        saved = buffer.state_dict()
        held = saved["storage"]["rows"].nbytes
        held += saved["sampler"]["priorities"].nbytes if "priorities" in saved["sampler"] else 0
        assert len(buffer) == (8 if overlap else 4)  # a chunk every 3 steps, the last one half empty, or every 6
        assert held == pytest.approx(buffer.bytes_per_transition * 6 * len(buffer))  # a padded chunk takes as much as a full one


def test_sample_shapes_and_dtypes() -> None:
    buffer = make(5, num_envs=1, burn_in=1)
    play(buffer, 13, end="T")
    batch = buffer.sample(8)
    assert set(batch) == {"obs", "actions", "rewards", "next_obs", "dones", "episode_starts", "mask", "initial_h", "initial_c"}
    assert batch["obs"].shape == batch["next_obs"].shape == (5, 8, 1)
    assert batch["obs"].untyped_storage().data_ptr() == batch["next_obs"].untyped_storage().data_ptr()  # stored once
    assert all(batch[key].shape == (5, 8) for key in ("actions", "rewards", "dones", "episode_starts", "mask"))
    assert all(batch[key].dtype == torch.float32 for key in ("rewards", "dones", "episode_starts", "mask"))
    assert batch["initial_h"].shape == batch["initial_c"].shape == (LAYERS, 8, HIDDEN) and batch["initial_h"].is_contiguous()


def naive_layout(steps: int, ended: bool, length: int, overlap: int, burn_in: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each chunk of an episode of `steps`, from the module's text: `start` may lie before the episode (empty slots)."""
    trained, stride = length - burn_in, length - max(overlap, burn_in)
    second = max(stride, burn_in) if burn_in <= trained else stride
    start = -burn_in
    while start + (burn_in if ended else length - 1) < steps:  # has a step to train, or all its steps
        yield start, min(start + length, steps)
        start += second if start == -burn_in else stride


def random_run(
    buffer: Any, script: list[list[tuple[str, bool]]], *, restart: int | None = None, in_feed: bool = False
) -> tuple[Any, list[list[tuple[list[float], str]]]]:
    """Vector steps of letters (`.`, T, L) and validity, through the buffer's own `add` or (`in_feed`) an assembler before it. Returns the
    buffer and each environment's episodes: observations and ending."""
    num_envs = buffer.num_envs
    assembler = buffer.make_assembler() if in_feed else None
    episodes: list[list[tuple[list[float], str]]] = [[([], ".")] for _ in range(num_envs)]
    for t, row in enumerate(script):
        if t == restart:
            saved = buffer.state_dict(), None if assembler is None else assembler.state_dict()
            buffer = RecurrentReplayBuffer(
                buffer.capacity, num_envs, (1,), buffer.layout.length, HIDDEN, LAYERS, buffer.layout.overlap, burn_in=buffer.layout.burn_in
            )
            buffer.load_state_dict(saved[0])
            if assembler is not None:
                assembler = buffer.make_assembler()
                assembler.load_state_dict(saved[1])
        obs = 1.0 + t + 500.0 * np.arange(num_envs)
        starts = np.array([not episodes[env][-1][0] for env in range(num_envs)])
        states = [state_of(value) for value in obs]
        step = Step(
            obs=obs[:, None],
            actions=obs.astype(np.int64) * 10,
            rewards=obs * 100,
            next_obs=obs[:, None] + 0.5,
            terminated=np.array([letter == "T" for letter, _ in row]),
            truncated=np.array([letter == "L" for letter, _ in row]),
            episode_starts=starts,
            initial_state=tuple(np.stack([state[part] for state in states], axis=1) for part in (0, 1)),
            valid=np.array([valid for _, valid in row]),
        )
        if assembler is not None:
            buffer.add_items(assembler.push(step))
        for env, (letter, valid) in enumerate(row):
            if valid:
                if assembler is None:
                    fields = {name: getattr(step, name)[env] for name in ("obs", "actions", "rewards", "next_obs", "truncated")}
                    ends = {"dones": step.terminated[env], "episode_start": starts[env], "initial_state": states[env]}
                    buffer.add(env_index=env, **fields, **ends)
                episodes[env][-1][0].append(float(obs[env]))
                if letter != ".":
                    episodes[env][-1] = (episodes[env][-1][0], letter)
                    episodes[env].append(([], "."))
    return buffer, episodes


letters = st.tuples(st.sampled_from(".......TL"), st.sampled_from([True, True, True, True, False]))
layouts = st.integers(1, 7).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length - 1), st.integers(0, length - 1)))
scripts = st.integers(1, 3).flatmap(lambda e: st.lists(st.lists(letters, min_size=e, max_size=e), min_size=1, max_size=60))


@settings(max_examples=200, deadline=None)
@given(layout=layouts, script=scripts, restart=st.integers(0, 60), in_feed=st.booleans())
def test_equals_the_naive_layout(layout: tuple[int, int, int], script: list[list[tuple[str, bool]]], restart: int, in_feed: bool) -> None:
    length, overlap, burn_in = layout
    made = make(length, num_envs=len(script[0]), overlap=overlap, burn_in=burn_in)
    buffer, episodes = random_run(made, script, restart=restart, in_feed=in_feed)
    got = {}
    for chunk in chunks(buffer):
        env = int(chunk["obs"][chunk["obs"] > 0][0] // 500)
        got.setdefault(env, []).append(chunk)
    for env, history in enumerate(episodes):
        expected = [
            (obs, end, start, stop) for obs, end in history for start, stop in naive_layout(len(obs), end != ".", length, overlap, burn_in)
        ]
        assert len(got.get(env, [])) == len(expected)
        trained: dict[float, int] = {}
        for chunk, (obs, end, start, stop) in zip(got.get(env, []), expected, strict=True):
            slots = [i - start for i in range(max(start, 0), stop)]
            steps = obs[max(start, 0) : stop]
            assert chunk["obs"][slots, 0].tolist() == steps
            assert chunk["rewards"][slots].tolist() == [100 * value for value in steps]
            assert chunk["actions"][slots].tolist() == [10 * value for value in steps]
            assert chunk["next_obs"][slots[-1], 0] == steps[-1] + 0.5  # the true one after the last valid step
            mask = [float(slot >= burn_in and slot in slots) for slot in range(length)]
            assert chunk["mask"].tolist() == mask and sum(mask) > 0
            assert chunk["episode_starts"].tolist() == [float(start + slot == 0) for slot in range(length)]
            is_last = stop == len(obs)
            assert chunk["dones"].tolist() == [float(is_last and end == "T" and start + slot == stop - 1) for slot in range(length)]
            assert torch.equal(chunk["initial_h"], torch.from_numpy(state_of(steps[0])[0]))
            assert torch.equal(chunk["initial_c"], torch.from_numpy(state_of(steps[0])[1]))
            for slot, on in enumerate(mask):
                if on:
                    trained[obs[start + slot]] = trained.get(obs[start + slot], 0) + 1
        for obs, end in history:
            if end != ".":  # every step of a finished episode is trained, exactly once where the trained parts do not overlap
                assert all(trained.get(value, 0) >= 1 for value in obs)
                if overlap <= burn_in and 2 * burn_in <= length:
                    assert all(trained[value] == 1 for value in obs)


@pytest.mark.parametrize("kind", [RecurrentReplayBuffer, PrioritizedRecurrentReplayBuffer])
def test_restored_buffer_goes_on_identically(kind: Any) -> None:
    one, two = (kind(60, 2, (1,), 5, HIDDEN, LAYERS, 2, burn_in=1, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(0)
    script = [[(str(rng.choice(list("......TL"))), bool(rng.random() < 0.9)) for _ in range(2)] for _ in range(160)]
    _, episodes = random_run(one, script[:80])
    one.sample(3)
    two.load_state_dict(one.state_dict())
    assert two.num_transitions == one.num_transitions and len(two) == len(one)
    for buffer in (one, two):
        random_run(buffer, script[80:])
    for _ in range(3):
        first, second = one.sample(16), two.sample(16)
        assert all(torch.equal(first[key], second[key]) for key in first)
    del episodes


def test_a_state_of_another_shape_is_refused() -> None:
    buffer, other = make(4, num_envs=2), make(4, num_envs=3)
    play(other, 1)
    with pytest.raises(ValueError, match="open chunks"):
        buffer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="open chunks hold"):
        make(4, extra={"weights_version": Field((), torch.int64)}).make_assembler().load_state_dict(make(4).make_assembler().state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 4, "burn_in": 4}, "sequence_length must be > burn_in"),
        ({"sequence_length": 4, "sequence_overlap": 4}, "sequence_overlap"),
        ({"sequence_length": 200}, "at least one sequence"),
        ({"sequence_length": 4, "num_envs": 0}, "num_envs"),
    ],
)
def test_bad_arguments(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecurrentReplayBuffer(**({"capacity": 100, "num_envs": 1, "obs_shape": (1,), "hidden_size": 2} | options))


def test_an_environment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(IndexError, match="env_index"):
        play(make(4), 1, env_index=1)


# What rides along with a step.


def life(t: int, *, lost: bool = False, end: str = ".", **fields: Any) -> Step:
    """Step t of one environment, with a GRU's state: h alone, t everywhere."""
    obs, flag = np.array([[float(t)]]), np.array([True])
    ends = {"terminated": flag & (end == "T"), "truncated": flag & (end == "L"), "lost_life": flag & lost}
    state = (np.full((LAYERS, 1, HIDDEN), t, np.float32),)
    return Step(obs, np.array([t]), np.array([1.0]), obs + 1, **ends, episode_starts=flag & (t == 1), initial_state=state, **fields)


def test_a_lost_life_is_a_done_inside_a_chunk_that_goes_on() -> None:
    buffer = make(4, state_parts=1)
    maker = buffer.make_assembler()
    for t in range(1, 7):
        buffer.add_items(maker.push(life(t, lost=t in (2, 4, 5), end="L" if t == 6 else ".")))
    first, last = chunks(buffer)
    assert (
        column(first, "obs") == [1, 2, 3, 4] and column(first, "dones") == [0, 1, 0, 1] and column(first, "episode_starts") == [1, 0, 0, 0]
    )
    assert column(last, "obs") == [5, 6, 7, 0] and column(last, "dones") == [1, 0, 0, 0] and column(last, "mask") == [1, 1, 0, 0]
    # a state of one part: no initial_c, and the second chunk's is the one before its step 5
    assert set(first[key][0, 0].item() for key in ("initial_h",)) == {1.0} and last["initial_h"][0, 0] == 5 and "initial_c" not in last


@pytest.mark.parametrize("parts", [0, 3])
def test_a_state_of_more_parts_than_a_batch_has_names_for_is_refused(parts: int) -> None:
    with pytest.raises(ValueError, match=rf"state_parts must lie in 1 … 2, got {parts}"):
        make(4, state_parts=parts)


def test_overlapping_chunks_share_their_dones() -> None:
    buffer = make(4, overlap=2, state_parts=1)
    maker = buffer.make_assembler()
    for t in range(1, 6):
        buffer.add_items(maker.push(life(t, lost=t == 4, end="T" if t == 5 else ".")))
    assert [column(chunk, "obs") for chunk in chunks(buffer)] == [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 0, 0]]
    assert [column(chunk, "dones") for chunk in chunks(buffer)] == [[0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0]]


def test_declared_fields_are_stored_and_sampled_by_their_names() -> None:
    extra = {"next_action_masks": Field((2,), torch.bool), "weights_version": Field((), torch.int64)}
    buffer = make(3, state_parts=1, extra=extra)
    maker = buffer.make_assembler()
    for t in range(1, 5):
        ridden = {"next_action_masks": np.array([[t % 2 == 0, True]]), "weights_version": np.array([7 * t])}
        buffer.add_items(maker.push(life(t, end="T" if t == 4 else ".", **ridden)))
    first, last = chunks(buffer)
    assert column(first, "weights_version") == [7, 14, 21] and column(last, "weights_version") == [28, 0, 0]
    assert first["next_action_masks"].tolist() == [[False, True], [True, True], [False, True]]
    with pytest.raises(ValueError, match="next_action_masks was declared"):
        maker.push(life(1))
    plain = make(3, state_parts=1)  # one that was told nothing holds nothing
    plain.add_items({"next_action_masks": np.zeros((1, 3, 2)), **one_chunk(plain)})
    assert "next_action_masks" not in plain.sample(1)


def one_chunk(buffer: Any) -> dict[str, Any]:
    maker = buffer.make_assembler()
    return maker.push(life(1, end="T"))


def test_a_chunk_takes_the_actors_priority_where_it_brings_one() -> None:
    # η·max + (1 − η)·mean over the trained steps, the burn-in's and the padding's left out; α = 1, eps = 0: stored as they are
    options = {"state_parts": 1, "burn_in": 1, "alpha": 1.0, "priority_eps": 0.0}
    buffer = PrioritizedRecurrentReplayBuffer(400, 1, (1,), 4, HIDDEN, LAYERS, **options)
    maker = buffer.make_assembler(priorities=True)
    for t in range(1, 6):
        buffer.add_items(maker.push(life(t, end="T" if t == 5 else ".", priorities=np.array([float(t)]))))
    # trained 1 2 3: .9·3 + .1·2 = 2.9; then 3 | 4 5: .9·5 + .1·4.5 = 4.95
    np.testing.assert_allclose(buffer._ring.sampler.tree.leaves(2), [2.9, 4.95], rtol=1e-6)
    assert buffer._ring.sampler.max_priority == pytest.approx(4.95)
