"""The documentation's picture of the report page, from a real browser: `python -m benchmarks.picture` writes docs/images/report.png."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from benchmarks.publish import RESULTS, ROOT
from rl_training.ledger.report import write_report
from tests.browser import Browser, find_browser

PICTURE = ROOT / "docs" / "images" / "report.png"


def main() -> int:
    program = find_browser()
    if program is None:
        print("error: no browser is installed (chromium, or what RL_TRAINING_BROWSER names)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        page = Path(folder) / "report.html"
        write_report([RESULTS], page)
        browser.open(page)
        browser.run("task.value = 'CartPole-v1'; task.onchange()")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(base64.b64decode(browser.picture(1200, 1180)))
        assert not browser.problems, browser.problems
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
