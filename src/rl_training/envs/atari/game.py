"""One Atari game behind a protocol: what Gymnasium's AtariPreprocessing does, with sticky actions of our own and a state that can be saved.

It speaks to the emulator itself, as Dopamine does: an environment below it would draw the screen in colour for every frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from rl_training.envs.atari.pooling import pool_in_colour
from rl_training.envs.atari.presets import Protocol
from rl_training.envs.atari.resize import AreaResize
from rl_training.errors import UserError

if TYPE_CHECKING:
    from ale_py import ALEInterface

    from rl_training.types import Array, State

RENDER_MODES = ("human", "rgb_array")
NOOP, FIRE, AFTER_FIRE = 0, 1, 2  # indices of actions; FIRE is at 1 in every game that has it
ROM_IN_STATE = slice(28, 64)
"""Where a saved emulator names its ROM, in ALE 0.12. Where another version does not, the check fails and the episode is played again."""
RECENT = 64
"""Steps since a reset under which no state is saved: what ALE leaves out of it has not settled in some games, and playing them is quick."""
WARM = 60
"""Frames that an emulator plays before a state is restored, for the same reason."""
SCREEN_OUTLIVES_STATE = frozenset({"tic_tac_toe_3d"})
"""Games that draw nothing for several frames, so that their next observation is of a screen no state holds. They are played again."""
SPREAD = 64
"""Bytes by which the states of one game differ in length: its random generator is saved as text."""


def load(game: str, protocol: Protocol, *, shown: bool) -> ALEInterface:
    """An emulator with this game in it. Nothing in it is random: sticky actions are ours, since ALE's state leaves the action held out."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before the first one greets
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setBool("display_screen", shown)
    ale.setBool("sound", shown)
    rom = ale_py.roms.get_rom_path(game)
    if rom is None:
        raise UserError(f"ale-py has no ROM of {game}")
    ale.loadROM(rom)
    if protocol.mode is not None:
        _require_known("mode", protocol.mode, game, ale.getAvailableModes())
        ale.setMode(protocol.mode)
    if protocol.difficulty is not None:
        _require_known("difficulty", protocol.difficulty, game, ale.getAvailableDifficulties())
        ale.setDifficulty(protocol.difficulty)
    return ale


def _require_known(part: str, value: int, game: str, known: Sequence[int]) -> None:
    if value not in known:
        raise UserError(f"env_kwargs.{part}: {game} has {', '.join(map(str, known))}, not {value}")


class AtariGame(gym.Env[Any, int]):
    """Observations [size, size] uint8 ([size, size, 3] in colour), the game's real rewards, its lives in `info`."""

    def __init__(self, game: str, protocol: Protocol, render_mode: str | None = None) -> None:
        if render_mode not in (None, *RENDER_MODES):
            raise UserError(f"Atari games render as {' or '.join(RENDER_MODES)}, not {render_mode!r}")
        self._ale = load(game, protocol, shown=render_mode == "human")
        self._saves = protocol.frame_skip >= 3 and game not in SCREEN_OUTLIVES_STATE
        self._codes: list[Any] = self._ale.getLegalActionSet() if protocol.full_action_set else self._ale.getMinimalActionSet()
        self.render_mode = render_mode
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": max(1, 60 // protocol.frame_skip)}
        self.action_space = gym.spaces.Discrete(len(self._codes))  # type: ignore[assignment]  # a Space[np.int64], which takes ints
        height, width = self._ale.getScreenDims()
        screen = (height, width) if protocol.grayscale else (height, width, 3)
        size = (protocol.screen_size, protocol.screen_size, *screen[2:])
        self.observation_space = gym.spaces.Box(0, 255, size, np.uint8)
        self._protocol, self._skip, self._sticky = protocol, protocol.frame_skip, protocol.sticky_probability
        self._pools = protocol.max_pool and self._skip > 1
        self._in_colour = self._pools and protocol.pool_in_colour and protocol.grayscale
        self._grab = self._ale.getScreenGrayscale if protocol.grayscale and not self._in_colour else self._ale.getScreenRGB
        self._resize = AreaResize(screen, protocol.screen_size)
        self._frames = np.zeros((2, *screen, *[3] * self._in_colour), np.uint8)  # the last frame and the one before
        self._seen = np.zeros(screen, np.uint8) if self._in_colour else self._frames[0]  # what they are pooled into
        self._fires = protocol.fire_reset and any(code.name == "FIRE" for code in self._codes)
        self._serves = (NOOP, FIRE, AFTER_FIRE) if self._fires else (NOOP,)
        self._life_ends = protocol.fire_reset and protocol.terminal_on_life_loss
        # For another seed ALE would have to load the ROM again, which takes as long as 300 steps, and its random numbers are for sticky
        # actions alone. An emulator brought back to where the ROM was just loaded begins the same game.
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
                self._look()
                if self._ale.game_over(with_truncation=False):
                    self._begin()
        if self._fires:
            for action in (FIRE, AFTER_FIRE):
                if self._play(action)[1]:
                    self._begin()
        return self._resize(self._seen), self._info()

    def _begin(self) -> None:
        self._ale.restoreState(self._loaded)
        self._ale.reset_game()
        self._look()
        self._frames[1] = 0

    def _look(self) -> None:
        """One frame, not pooled."""
        if self._in_colour:
            self._ale.getScreenGrayscale(self._seen)
        else:
            self._grab(self._seen)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        lives = self._ale.lives() if self._life_ends else 0
        reward, over = self._play(action)
        if lives and not over and 0 < self._ale.lives() < lives:
            more, over = self._serve()
            reward += more
        self._steps += 1
        truncated = self._steps >= self._protocol.max_steps and not over
        return self._resize(self._seen), reward, over, truncated, self._info()

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
        if self._in_colour and not over:
            self._ale.getScreenGrayscale(self._seen)
            pool_in_colour(self._frames, self._seen)
        elif self._pools and not self._in_colour:
            np.maximum(self._frames[0], self._frames[1], out=self._frames[0])
        return float(reward), over

    def _serve(self) -> tuple[float, bool]:
        """After a lost life, as Stable-Baselines3's EpisodicLifeEnv and FireResetEnv do: nobody sees what is between, and the learner's
        episode is over. What it brings counts."""
        total = 0.0
        for action in self._serves:
            reward, over = self._play(action)
            total += reward
            if over:
                return total, True
        return total, False

    def _act(self, code: Any) -> int:
        if not self._sticky or self._random.random() >= self._sticky:
            self._held = code
        return int(self._ale.act(self._held))

    def _info(self) -> dict[str, Any]:
        return {"lives": self._ale.lives()}

    def render(self) -> Any:
        """The whole screen in colour, as a person would see it; in a window ALE shows it itself."""
        return self._ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    # A saved game

    def save_state(self) -> State | None:
        """Everything the game goes on from; None where its actions are the better record. Of the two frames the first is enough: it is
        their maximum. The screen is not in the state, and the first frame after it may show what was there before: those with a frame
        skip under 3 would see that."""
        if self._steps < RECENT or not self._saves:
            return None
        return {
            "emulator": self._emulator(),
            "frame": self._seen.copy(),
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
        if frame.dtype != np.uint8 or frame.shape != self._seen.shape:
            raise ValueError(f"a saved frame of shape {frame.shape}, {frame.dtype}")
        for _ in range(WARM):
            self._ale.act(self._codes[NOOP])
        saved = ALEState.__new__(ALEState)
        saved.__setstate__(cast("Any", emulator.tobytes()))  # bytes, whatever its stub says
        self._ale.restoreState(saved)
        # The observation below is the saved frame, so it is equal whatever the emulator does: what the emulator now says of itself is not.
        if not np.array_equal(self._emulator(), emulator):
            raise ValueError("an emulator that is not where it was saved")
        self._seen[...], self._frames[1] = frame, 0
        self._random.bit_generator.state = state["generator"]
        self._held, self._steps = self._codes[int(state["held"])], int(state["steps"])
        return self._resize(self._seen), self._info()

    def _emulator(self) -> Array:
        return np.frombuffer(cast("bytes", self._ale.cloneState(include_rng=True).__getstate__()), np.uint8)
