"""Garbage collection for a process that keeps hundreds of thousands of objects and makes many more.

What is there before a run starts (modules, schemas, the taskset) stays till its end, yet each full
collection goes through all of it. Frozen, it is left out.
"""

import contextlib
import gc
from collections.abc import Iterator

YOUNG = 5_000
"""Objects made before a young collection, instead of 700: those of a dozen rollouts, so that most
of what is in flight when one comes is garbage by the next."""


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Collect only what is made in here, and less often; put back afterwards as it was. Where the
    caller froze objects before, or turned collection off, this changes nothing."""
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    threshold = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
