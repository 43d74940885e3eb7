"""One Atari game behind a protocol: what Gymnasium's AtariPreprocessing does, with sticky actions of our own and a state that can be saved.

It speaks to the emulator itself, as Dopamine does: an environment below it would draw the screen in colour for every frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from rl_training.envs.atari.presets import Protocol
from rl_training.envs.atari.resize import AreaResize

if TYPE_CHECKING:
    from ale_py.env import AtariEnv

    from rl_training.types import Array, State

NOOP, FIRE, AFTER_FIRE = 0, 1, 2  # indices of actions; FIRE is at 1 in every game that has it
ROM_IN_STATE = slice(28, 64)
"""Where a saved emulator names its ROM, in ALE 0.12. Where another version does not, the check fails and the episode is played again."""
RECENT = 64
"""Steps since a reset under which no state is saved: what ALE leaves out of it has not settled in some games, and playing them is quick."""
WARM = 60
"""Frames that an emulator plays before a state is restored, for the same reason."""
SPREAD = 64
"""Bytes by which the states of one game differ in length: its random generator is saved as text."""


class AtariGame(gym.Env[Any, int]):
    """Observations [size, size] uint8 ([size, size, 3] in colour), the game's real rewards, its lives in `info`."""

    def __init__(self, game: str, protocol: Protocol, render_mode: str | None = None) -> None:
        from ale_py.env import AtariEnv

        self._game: AtariEnv = AtariEnv(
            game=game,
            mode=protocol.mode,
            difficulty=protocol.difficulty,
            frameskip=1,
            repeat_action_probability=0.0,  # ours: ALE's saved state leaves the action that is held out
            full_action_space=protocol.full_action_set,
            render_mode=cast("Any", render_mode),
        )
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["human", "rgb_array"], "render_fps": max(1, 60 // protocol.frame_skip)}
        self.action_space = self._game.action_space
        self._ale, self._codes = self._game.ale, self._game._action_set
        height, width = self._ale.getScreenDims()
        screen = (height, width) if protocol.grayscale else (height, width, 3)
        size = (protocol.screen_size, protocol.screen_size, *screen[2:])
        self.observation_space = gym.spaces.Box(0, 255, size, np.uint8)
        self._grab = self._ale.getScreenGrayscale if protocol.grayscale else self._ale.getScreenRGB
        self._resize = AreaResize(screen, protocol.screen_size)
        self._frames = np.zeros((2, *screen), np.uint8)  # the last frame and the one before; pooled into the first
        self._protocol, self._skip, self._sticky = protocol, protocol.frame_skip, protocol.sticky_probability
        self._fires = protocol.fire_reset and "FIRE" in self._game.get_action_meanings()
        # With a seed ALE would load the ROM again, which takes as long as 300 steps; the seed is for its sticky actions alone. An emulator
        # brought back to where the ROM was just loaded begins the same game.
        self._loaded = self._ale.cloneState(include_rng=True)
        self._random, _ = seeding.np_random(None)
        self._held = self._codes[NOOP]
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:  # as AtariEnv does it, so that the no-ops of a seed are Gymnasium's
            self._random, _ = seeding.np_random(int(np.random.SeedSequence(seed).generate_state(2)[0]))
        self._begin()
        self._held, self._steps = self._codes[NOOP], 0
        if self._protocol.noop_max:
            for _ in range(self._random.integers(1, self._protocol.noop_max + 1)):
                self._act(self._codes[NOOP])
                self._grab(self._frames[0])
                if self._ale.game_over(with_truncation=False):
                    self._begin()
        if self._fires:
            for action in (FIRE, AFTER_FIRE):
                if self._play(action)[1]:
                    self._begin()
        return self._resize(self._frames[0]), self._info()

    def _begin(self) -> None:
        self._ale.restoreState(self._loaded)
        self._ale.reset_game()
        self._grab(self._frames[0])
        self._frames[1] = 0

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, over = self._play(action)
        self._steps += 1
        truncated = self._steps >= self._protocol.max_steps and not over
        return self._resize(self._frames[0]), reward, over, truncated, self._info()

    def _play(self, action: int) -> tuple[float, bool]:
        """Holds an action for `frame_skip` frames; the reward of them all, and whether the game is over.

        Where it is, the frames that are left stay as they were: nobody learns from what is seen then.
        """
        code, reward, over = self._codes[action], 0, False
        for left in reversed(range(self._skip)):
            reward += self._act(code)
            over = self._ale.game_over(with_truncation=False)
            if over:
                break
            if left <= 1:
                self._grab(self._frames[left])
        if self._protocol.max_pool and self._skip > 1:
            np.maximum(self._frames[0], self._frames[1], out=self._frames[0])
        return float(reward), over

    def _act(self, code: Any) -> int:
        if not self._sticky or self._random.random() >= self._sticky:
            self._held = code
        return int(self._ale.act(self._held))

    def _info(self) -> dict[str, Any]:
        return {"lives": self._ale.lives()}

    def render(self) -> Any:
        """The whole screen in colour, as a person would see it."""
        return self._game.render()

    def close(self) -> None:
        self._game.close()

    # A saved game

    def save_state(self) -> State | None:
        """Everything the game goes on from; None where its actions are the better record. Of the two frames the first is enough: it is
        their maximum. The screen is not in the state, and the first frame after it may show what was there before: those with a frame
        skip under 3 would see that."""
        if self._steps < RECENT or self._skip < 3:
            return None
        return {
            "emulator": self._emulator(),
            "frame": self._frames[0].copy(),
            "generator": self._random.bit_generator.state,
            "held": self._codes.index(self._held),
            "steps": self._steps,
        }

    def restore_state(self, state: State) -> tuple[Array, dict[str, Any]]:
        """Brings a saved game back: its observation and info. ValueError (or another) where that is no state of this game."""
        from ale_py import ALEState

        emulator, frame, here = np.asarray(state["emulator"]), np.asarray(state["frame"]), self._emulator()
        if emulator.dtype != np.uint8 or emulator.ndim != 1 or abs(emulator.size - here.size) > SPREAD:
            raise ValueError(f"a saved emulator of {emulator.size} {emulator.dtype}")
        if not np.array_equal(emulator[ROM_IN_STATE], here[ROM_IN_STATE]):
            raise ValueError("a saved emulator with another ROM")
        if frame.dtype != np.uint8 or frame.shape != self._frames[0].shape:
            raise ValueError(f"a saved frame of shape {frame.shape}, {frame.dtype}")
        for _ in range(WARM):
            self._ale.act(self._codes[NOOP])
        saved = ALEState.__new__(ALEState)
        saved.__setstate__(cast("Any", emulator.tobytes()))  # bytes, whatever its stub says
        self._game.restore_state(saved)
        self._frames[0], self._frames[1] = frame, 0
        self._random.bit_generator.state = state["generator"]
        self._held, self._steps = self._codes[int(state["held"])], int(state["steps"])
        return self._resize(self._frames[0]), self._info()

    def _emulator(self) -> Array:
        return np.frombuffer(cast("bytes", self._game.clone_state(include_rng=True).__getstate__()), np.uint8)
