"""Freed memory stays with the process: an update finds what the last one gave back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rl_training.speed.allocator import keep_freed_memory

COUNT = """
import resource, sys
import numpy as np
from rl_training.speed.allocator import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(77)
def use():
    for _ in range(5):
        [np.ones(1 << 18) for _ in range(16)]  # 16 times 2 MB, every page written, all freed together
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, mode], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_used_again() -> None:
    # Without it glibc gives the 32 MB back each time, and the kernel hands 8,192 pages out anew (16 where they are huge).
    assert page_faults("keep") < 40 < page_faults("leave")


def test_it_may_be_asked_for_again() -> None:
    assert keep_freed_memory() == keep_freed_memory()
