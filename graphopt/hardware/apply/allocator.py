"""glibc's malloc gives large blocks back to the system when they are freed, and every new one costs page faults. A
process that is told to keep them has none of these, and holds its highest memory until it ends."""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_memory() -> bool:
    """From now on in this process. Returns whether malloc took it: that of glibc has these settings, others may not."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((MMAP_THRESHOLD, 2**30), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 2**28))
    return mallopt is not None and all(mallopt(setting, ctypes.c_int(value)) == 1 for setting, value in wanted)
