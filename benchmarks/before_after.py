"""This tree against another checkout of the project, in turns: what a change costs or gains.

    git worktree add ../before COMMIT
    python -m benchmarks.before_after ../before --json benchmarks/results/before_after.json

Each case runs in two processes, one for each tree, that are asked in turns; they are started anew a few times (`--starts`), since how a
process's memory happens to lie stays with it. A ratio is that of one round, new over old; the table has the median and the spread over
rounds. The cases are those of benchmarks.learner (updates/s) and benchmarks.throughput (environment steps/s), ours alone, by processor
time: what else the machine does counts for less.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, machine

HERE = Path(__file__).resolve().parent.parent
LEARNERS = ("our_dqn", "our_qr_dqn 51", "our_qr_dqn 200", "our_c51", "our_iqn", "our_rainbow")
LOOPS = tuple(f"{hidden} {every}" for hidden in ("64,64", "120,84") for every in (1, 4))

SERVER = """
import os, sys, time
tree, case, compiled, prelude = sys.argv[1], sys.argv[2], sys.argv[3] == "compiled", sys.argv[4]
sys.path[:0] = [tree + "/src", tree]
answers = os.dup(1)
os.dup2(2, 1)  # whatever prints there
import gymnasium, torch
torch.set_num_threads(1)
exec(prelude)
name, *numbers = case.split()
if name.startswith("our_"):
    from benchmarks import learner
    given = [int(numbers[0]), False] if numbers else []
    torch.manual_seed(0)
    work = getattr(learner, name)(*given, **({"compiled": case} if compiled else {}))
    work(50)
    def rate(seconds):
        begin, done = time.process_time(), 0
        while time.process_time() - begin < seconds:
            work(20)
            done += 20
        return done / (time.process_time() - begin)
else:
    from benchmarks import throughput
    throughput.clock = time.process_time
    gymnasium.register(id=throughput.ENV_ID, entry_point=throughput.TimedCartPole, max_episode_steps=500)
    hidden, every = tuple(int(size) for size in name.split(",")), int(numbers[0])
    def train(total):
        throughput.train_ours(total, hidden=hidden, every=every, threads=1, compile=compiled)
    rate = lambda seconds: throughput.timed(train, 1_500, 1_500 + int(6_000 * seconds))()
    rate(0.2)  # compiled and cached
os.write(answers, b"ready\\n")
for line in sys.stdin:
    os.write(answers, f"{rate(float(line))}\\n".encode())
"""


class Served:
    """One case of one tree, in a process of its own. prelude: code that it runs first."""

    def __init__(self, tree: Path, case: str, mode: str, prelude: str = "") -> None:
        command = [sys.executable, "-c", SERVER, str(tree.resolve()), case, mode, prelude]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tree
        )
        if self._read() != "ready":
            raise SystemExit(f"{case}, {mode}, in {tree}: did not start")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def rate(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (default: %(default)s)")
    parser.add_argument(
        "--starts", type=int, default=3, help="of the two processes, over which the rounds are spread (default: %(default)s)"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'case':<28}{'median':>8}{'lowest':>8}{'highest':>8}{'before':>10}{'now':>10}")
    for mode in ("eager",) if options.no_compile else ("eager", "compiled"):
        for case in (*LEARNERS, *LOOPS):
            if options.only not in case:
                continue
            rounds = []
            for start in range(options.starts):
                trees = [Served(tree, case, mode) for tree in (options.before, HERE)]
                rounds += [[tree.rate(options.seconds) for tree in trees] for _ in range(start, options.rounds, options.starts)]
                for tree in trees:
                    tree.close()
            ratios = [now / before for before, now in rounds]
            before, now = (statistics.median(rates) for rates in zip(*rounds, strict=True))
            row = {"case": case, "mode": mode, "ratio": round(statistics.median(ratios), 3), "ratios": [round(x, 3) for x in ratios]}
            rows.append({**row, "before": round(before, 1), "now": round(now, 1)})
            print(
                f"{case + ', ' + mode:<28}{row['ratio']:>8.3f}{min(ratios):>8.3f}{max(ratios):>8.3f}{before:>10,.0f}{now:>10,.0f}",
                flush=True,
            )
            if options.json is not None:
                commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=options.before, capture_output=True, text=True).stdout.strip()
                record = {"machine": machine(1), "before": commit, "rows": rows}
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
