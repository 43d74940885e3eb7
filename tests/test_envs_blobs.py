"""The pixel task: what it shows, what it pays, and that neither a linear model nor one without memory can do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.envs.blobs import DIFFERENT, SAME, SIZE, Blobs


def sides(image: Any) -> list[bool]:
    """For the upper and the lower half: whether its square is on the right. Halves without one are left out."""
    half = SIZE // 2
    return [bool(part[:, half:].any()) for part in (image[:half], image[half:]) if part.any()]


@pytest.mark.parametrize("memory", [False, True])
def test_the_answer_is_in_the_images(memory: bool) -> None:
    env, seen = Blobs(memory), set()
    for seed in range(200):
        image, _ = env.reset(seed=seed)
        if memory:
            first = sides(image)
            image, reward, terminated, _, _ = env.step(seed % 2)  # whatever is done
            assert (reward, terminated) == (0.0, False)
            found = first + sides(image)
        else:
            found = sides(image)
        assert len(found) == 2 and np.count_nonzero(image) in (4, 8) and (image[image > 0] >= 128).all()
        answer = SAME if found[0] == found[1] else DIFFERENT
        guess = answer if seed % 3 else 1 - answer
        _, reward, terminated, truncated, _ = env.step(guess)
        assert (reward, terminated, truncated) == (float(guess == answer), True, False)
        seen.add(tuple(found))
    assert len(seen) == 4


def test_a_sum_over_pixels_gets_three_of_four_cases_at_most() -> None:
    """The least-squares fit of the answer to pixels, of 4,000 images, is right hardly more than half of the time on others."""
    env = Blobs()
    images, answers = [], []
    for seed in range(6_000):
        image, _ = env.reset(seed=seed)
        images.append(np.append(image.reshape(-1) / 255, 1.0))
        answers.append(env._answer)
    x, y = np.array(images), np.array(answers) * 2.0 - 1
    weights, *_ = np.linalg.lstsq(x[:4_000], y[:4_000], rcond=None)
    right = float(np.mean((x[4_000:] @ weights > 0) == (y[4_000:] > 0)))
    assert right < 0.75 and 0.4 < np.mean(np.array(answers)) < 0.6


def test_the_second_image_alone_says_nothing() -> None:
    env, same = Blobs(memory=True), {False: [], True: []}  # type: ignore[var-annotated]
    for seed in range(2_000):
        env.reset(seed=seed)
        image, *_ = env.step(0)
        same[sides(image)[0]].append(env._answer)
    for answers in same.values():  # half of them, within 4 standard deviations of some 1,000 tosses
        assert abs(np.mean(answers) - 0.5) < 4 * 0.5 / len(answers) ** 0.5
