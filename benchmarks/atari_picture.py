"""The documentation's picture of an agent playing: `python -m benchmarks.atari_picture RUN` writes docs/images/atari_playing.gif.

It is what `rl-training eval --record` records, a few seconds of it, in few colours. Needs the extras atari and video.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import imageio.v3 as iio
import numpy as np
from PIL import Image

from benchmarks.publish import ROOT
from rl_training.runtime.workflows import evaluate_checkpoint

PICTURE = ROOT / "docs" / "images" / "atari_playing.gif"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory or a checkpoint")
    parser.add_argument("--first", type=int, default=100, help="the step it begins at (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=150, help="steps shown, 15 a second (default: %(default)s)")
    parser.add_argument("--colours", type=int, default=32)
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "play.mp4"
        metrics = evaluate_checkpoint(options.run, num_episodes=1, record=recording)
        frames = iio.imread(recording)[options.first : options.first + options.frames]
    several = Image.fromarray(np.concatenate(list(frames[::15]), axis=1))  # a ball's colour counts, however small it is
    palette = several.quantize(options.colours, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    pictures = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(options.output, save_all=True, append_images=pictures[1:], duration=67, loop=0, optimize=True)
    print(
        f"{options.output}: {len(frames)} of {metrics['eval_length_mean']:.0f} steps, {options.output.stat().st_size / 1e3:.0f} kB; ",
        end="",
    )
    print(f"the game's return {metrics['eval_return_mean']:.0f}")


if __name__ == "__main__":
    main()
