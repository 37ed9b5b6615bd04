"""Append lines to a file from many coroutines, several of them in one write.

A line is in the file when `append` returns. While one write is under way (in a thread: a slow disk
must not stop the loop), the lines that come in wait and go out together in the next, so a busy loop
pays for few of the hops to a thread and back, and an idle one does not wait for company.
"""

import asyncio
import contextlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from verifiers.v1.utils.aio import run_shielded

Waiting = tuple[bytes, "asyncio.Future[int]"]


class Appender:
    """Appends to one file, from one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Waiting] = []
        self._writing = False

    async def append(self, line: bytes) -> int:
        """Append a line, its newline included, and return its offset in bytes. Once begun, it is
        written whatever is cancelled. Raises OSError where the file did not take it; then nothing
        of it is there."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((line, written))
        if not self._writing:
            self._write_waiting()
        return await run_shielded(written)

    def _write_waiting(self) -> None:
        # Not a task: the loop's shutdown would cancel it, and every waiting line with it.
        batch, self._waiting = self._waiting, []
        self._writing = True
        lines = [line for line, _ in batch]
        running = asyncio.get_running_loop().run_in_executor(None, write_lines, self.path, lines)
        running.add_done_callback(lambda done: self._finish(batch, *done.result()))

    def _finish(self, batch: list[Waiting], offsets: list[int], error: OSError | None) -> None:
        for (_, written), offset in zip(batch, offsets, strict=False):
            written.set_result(offset)
        for _, written in batch[len(offsets) :]:
            assert error is not None
            written.set_exception(error)
        self._writing = False
        if self._waiting:
            self._write_waiting()


def write_lines(path: Path, lines: Sequence[bytes]) -> tuple[list[int], OSError | None]:
    """Append `lines`, in one write if the system takes them at once. The offsets of those that are
    in the file, and what kept out the rest: each is there whole or not at all."""
    data, written, error = memoryview(b"".join(lines)), 0, None
    try:
        with path.open("ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                while written < len(data):
                    written += file.write(data[written:])
            except OSError as refused:
                error = refused
            bounds = list(accumulate(map(len, lines), initial=start))
            whole = bisect_right(bounds, start + written) - 1
            if written < len(data):
                with contextlib.suppress(OSError):
                    file.truncate(bounds[whole])
            return bounds[:whole], error
    except OSError as refused:  # it can't be opened
        return [], refused
