"""Writes docs/results.md and the README's numbers from the records: `python -m benchmarks.publish` (`make results`)."""

from __future__ import annotations

import sys
from pathlib import Path

from rl_training.errors import UserError
from rl_training.experiment.files import write_text
from rl_training.ledger.publish import publish

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "learning"
STATISTICS = ROOT / "benchmarks" / "results" / "statistics.json"


def main() -> int:
    try:
        for path, text in publish(ROOT, STATISTICS, RESULTS).items():
            write_text(path, text)
            print(path.relative_to(ROOT))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
