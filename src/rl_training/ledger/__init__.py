"""What every algorithm really learns: suites of runs, one record per run, their statistics, tables and page."""

from pathlib import Path

RESULTS = Path("benchmarks/results/learning")  # where records are kept unless somebody says otherwise
