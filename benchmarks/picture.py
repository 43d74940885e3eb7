"""The documentation's pictures of the report and of its own front page, from a real browser: `python -m benchmarks.picture`.

Writes docs/images/report_<width>.png for three widths, from this repository's records, and docs/images/docs.png. Colours are reduced to
a palette: a page of curves and text then takes tens of kilobytes.
"""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.publish import RESULTS, ROOT
from rl_training.ledger.report import write_report
from tests.browser import Browser, find_browser

IMAGES = ROOT / "docs" / "images"
WIDTHS = (1400, 1000, 800)
COLOURS = 256


def write(name: str, png: str) -> None:
    target = IMAGES / name
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(
        COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(target, optimize=True)
    print(target.relative_to(ROOT), f"{target.stat().st_size / 1000:.0f} kB")


def main() -> int:
    program = find_browser()
    if program is None:
        print("error: no browser is installed (chromium, or what RL_TRAINING_BROWSER names)", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        page = Path(folder) / "report.html"
        write_report([RESULTS], page)
        browser.open(page)
        browser.run("task.value = 'CartPole-v1'; task.onchange()")
        for width in WIDTHS:
            write(f"report_{width}.png", browser.picture(width, 1000))
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", f"{folder}/site"]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
        browser.open(Path(folder) / "site" / "index.html")
        write("docs.png", browser.picture(1200, 800))
        assert not browser.problems, browser.problems
    return 0


if __name__ == "__main__":
    sys.exit(main())
