"""What every algorithm really learns: suites of runs, one record per run, their statistics, tables and page."""
