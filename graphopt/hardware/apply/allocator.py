"""glibc's malloc gives large blocks back to the system when they are freed, and every new one costs page faults. A
process that is told to keep them has none of these, and holds its highest memory until it ends."""

import ctypes

import torch

from graphopt.core.errors import UserError

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # malloc.h
LARGEST = (32 << 20) - 8192  # bytes of the largest block that moves thresholds of glibc's malloc when it is freed


def free_a_large_block() -> None:
    """Without touching its memory. From then on malloc keeps up to 64 MB, as in any process that has freed a large
    block (mallopt(3), M_MMAP_THRESHOLD). Otherwise results that are freed at the end of the heap can cost page faults
    in every run."""
    torch.empty(LARGEST, dtype=torch.uint8)


def keep_memory() -> bool:
    """From now on in this process. Returns whether malloc took it: that of glibc has these settings, others may not."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((MMAP_THRESHOLD, 2**30), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 2**28))
    return mallopt is not None and all(mallopt(setting, ctypes.c_int(value)) == 1 for setting, value in wanted)


def use_allocator(allocator: str) -> None:
    """`keep` or `user`. Raises UserError for other words, and where malloc cannot keep memory."""
    if allocator not in ("user", "keep"):
        raise UserError(f"allocator={allocator} does not exist; available: user, keep")
    if allocator == "keep" and not keep_memory():
        raise UserError("allocator=keep needs glibc's malloc, and this process has another; leave it out")
