"""Memory that an update gives back is kept for the next one.

glibc takes a large piece of memory from the kernel and gives it back when it is freed, and the kernel hands out every page anew, zeroed. An
update frees what it allocated and the next one wants the same sizes: with batches of a megabyte that is hundreds of page faults each.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_FROM_HEAP = 32 << 20  # the most that glibc takes for this
KEPT = 512 << 20


def keep_freed_memory() -> bool:
    """Pieces up to 32 MB come from the heap, of whose free end up to 512 MB stay with the process. False where the C library is another."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(option, value) for option, value in ((M_MMAP_THRESHOLD, LARGEST_FROM_HEAP), (M_TRIM_THRESHOLD, KEPT)))
