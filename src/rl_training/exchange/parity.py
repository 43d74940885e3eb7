"""Whether an exported policy does what the package's does: random steps, the recurrent state threaded through both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from rl_training.envs.masks import choice_sizes
from rl_training.errors import RunError
from rl_training.exchange.acting_module import STATE_INPUTS
from rl_training.exchange.raw_observations import RawObservations
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.network import reads_previous
from rl_training.runtime.behaviour import allowed_outputs
from rl_training.runtime.policy import Policy
from rl_training.types import Array

Named: TypeAlias = Mapping[str, Array]
Run: TypeAlias = Callable[[Named], Named]
"""Inputs by name → outputs by name."""

STEPS = {3: 100, 1: 10}
"""Observations at once → steps. The batch that was traced had 2: its size must not have been taken for granted."""

TOLERANCE = 1e-4
"""Of the largest number of an output, or of 1 if that is larger.

Both compute in float32 (a unit of 6e-8) and sum in another order. A sum of 1,000 products errs by up to 6e-5 of its largest partial sum, by
a few 1e-6 as a rule; a categorical head multiplies what its logits err by with its support, and a recurrent state hands its error on.
A graph that computes something else is off by the size of the numbers themselves.
"""


def require_parity(run: Run, policy: Policy, raw: RawObservations | None = None, *, seed: int = 0) -> None:
    """Raises RunError unless `run` gives the policy's outputs, and the actions that the package chooses by them.

    raw: what `run` is given where it applies wrappers by itself; the policy is given what the package's wrappers make of the same.
    """
    rng = np.random.default_rng(seed)
    for batch_size, steps in STEPS.items():
        state = policy.network.initial_state(batch_size)
        theirs: dict[str, Array] = {name: part.numpy() for name, part in zip(STATE_INPUTS, state, strict=False)}
        for step in range(steps):
            given_obs, obs = _observations(policy, raw, batch_size, rng)
            starts = (rng.random(batch_size) < 0.1) | (step == 0)
            previous = random_previous(policy, batch_size, rng)
            value = policy.value(obs, state, starts, previous=previous) if isinstance(policy.network, ActorCritic) else None
            outputs, state = policy.outputs(obs, state, starts, previous=previous)
            masks = random_masks(policy, batch_size, rng)
            also: dict[str, Array] = {"episode_start": starts} if theirs else {}
            if previous is not None:
                also |= dict(zip(("previous_action", "previous_reward"), previous, strict=True))
            given = run({**given_obs, **theirs, **also, **({} if masks is None else {"action_mask": masks})})
            theirs = {name: given[f"next_{name}"] for name in theirs}
            where = f"at step {step + 1} of {batch_size} episodes"
            chosen_by = np.concatenate([given[name] for name in output_names(policy)], -1)
            _require_close(" and ".join(output_names(policy)), chosen_by, outputs, where)
            if value is not None:
                _require_close("values", given["values"], value, where)
            for name, part in zip(theirs, state, strict=True):
                _require_close(f"next_{name}", theirs[name], part.numpy(), where)
            actions = policy.network.greedy(allowed_outputs(chosen_by, masks)) + policy.first_action
            if given["action"].shape != actions.shape or not np.array_equal(given["action"], actions):
                raise RunError(f"{where} the action is {given['action'].tolist()}, and the package's by the same values {actions.tolist()}")


def output_names(policy: Policy) -> tuple[str, ...]:
    """The outputs that the action is chosen by, which one after the other are the network's."""
    return tuple(policy.network.distribution.parameters) if isinstance(policy.network, ActorCritic) else ("values",)


def _observations(policy: Policy, raw: RawObservations | None, size: int, rng: np.random.Generator) -> tuple[Named, Array]:
    """What goes into the file, and what the package's network reads."""
    if raw is not None:
        return raw.batch(size, rng)
    obs = random_observations(policy, size, rng)
    return {"obs": obs}, obs


def random_observations(policy: Policy, batch_size: int, rng: np.random.Generator) -> Array:
    """Such as the network may meet: bytes over their range, other numbers about where training saw them."""
    shape, dtype = (batch_size, *policy.obs_shape), np.dtype(policy.obs_dtype)
    if dtype.kind in "bu":
        high = 255 if policy.image is None else policy.image.high
        return rng.integers(0, high, shape, np.uint8, endpoint=True).astype(dtype)
    numbers: Array = rng.standard_normal(shape)
    if policy.normalizer is not None:
        numbers = policy.normalizer.shift + numbers * policy.normalizer.scale
    return numbers.astype(dtype)


def random_previous(policy: Policy, batch_size: int, rng: np.random.Generator) -> tuple[Array, Array] | None:
    """Actions and rewards that may have led to an observation; None where the network does not read them."""
    if not reads_previous(policy.network):
        return None
    actions: Array = policy.first_action + rng.integers(0, policy.spaces["num_actions"], batch_size)
    return actions, rng.standard_normal(batch_size).astype(np.float32)


def random_masks(policy: Policy, batch_size: int, rng: np.random.Generator) -> Array | None:
    """About half of the actions, and in each choice at least one; None where the policy knows of no masks."""
    if not policy.spaces.get("action_masks"):
        return None
    sizes = choice_sizes(policy.spaces["action"])
    masks = rng.random((batch_size, sum(sizes))) < 0.5
    for first, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        masks[np.arange(batch_size), first + rng.integers(0, size, batch_size)] = True
    return masks


def _require_close(name: str, found: Array, expected: Array, where: str) -> None:
    if found.shape != expected.shape:
        raise RunError(f"{where} {name} has the shape {found.shape}, and the package's is {expected.shape}")
    off = float(np.max(np.abs(found - expected), initial=0.0))
    allowed = TOLERANCE * max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not off <= allowed:
        raise RunError(f"{where} {name} differs from the package's by {off:.3g}, and rounding explains {allowed:.3g}")
