"""The fault campaign: what a run, a checkpoint or a command does when it is killed, cut, lied to, interrupted, starved or raced.

    python -m benchmarks.faults                     all parts, in their full form, into benchmarks/results/faults.json
    python -m benchmarks.faults --scale short       seconds; tests/test_faults.py runs it

Every part is a list of cases, and a case plays rounds: something is done to the command line in a process of its own, and what is left is
judged. The process is forked from one that has loaded everything (children.py), so that a round costs what it does and no Python start.
"""
