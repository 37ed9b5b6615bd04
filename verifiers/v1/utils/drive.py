"""Drive one event loop from synchronous code, and stop it in order on a signal.

`gepa.optimize` blocks and calls back synchronously while everything in verifiers is async. A
`Drive` owns the one loop of a run. A signal must raise neither in the middle of somebody's
coroutine nor while the search updates its state (a half-updated lock, server or list is worse than
the interrupt), so the handler only takes a note and cancels the coroutine that is driven;
`Interrupted` is raised where that has unwound, or where the next one is to be run. Further signals
are swallowed, so that an impatient second Ctrl-C can't orphan what the teardown is freeing.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")

FIRST = b"interrupted: finishing up, please wait (what was measured is kept)\n"
AGAIN = b"still finishing up, please wait (signal ignored)\n"


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; `signum` says which. The exit status is 128 + `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Drive:
    """One event loop, run a coroutine at a time from the thread that entered it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._task: asyncio.Task[Any] | None = None
        self._finishing = False
        self.signum: int | None = None
        self.silent = False
        """Whether something else shows that a signal has come."""

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        # Cancels what still runs, closes async generators and the default executor.
        self._finishing = True
        self._runner.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end. Raises `Interrupted` if a signal has come, after `main` was
        cancelled and has unwound."""
        try:
            self.check()
        except Interrupted:
            main.close()
            raise
        try:
            return self._runner.run(self._tracked(main))
        except asyncio.CancelledError:
            if self.signum is None:
                raise
            raise Interrupted(self.signum) from None

    def finish(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a teardown coroutine, which no signal cuts short, and no task that exits: asyncio
        stops the loop for a `SystemExit` in any of its tasks, once for each task it passes."""
        self._finishing = True
        loop = self._runner.get_loop()
        task = loop.create_task(self._tracked(main))
        while True:
            try:
                return loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise

    async def _tracked(self, main: Coroutine[Any, Any, T]) -> T:
        self._task = None if self._finishing else asyncio.current_task()
        if self.signum is not None and not self._finishing:  # it came since `check`
            main.close()
            raise asyncio.CancelledError
        try:
            return await main
        finally:
            self._task = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM for the duration, in the main thread; elsewhere signals stay
        the caller's."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {
            signum: signal.signal(signum, self._on_signal)
            for signum in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def interrupt(self, signum: int) -> None:
        """End the run as signal `signum` would, from any thread."""
        # Not through logging: its lock may be held by the very code that was interrupted.
        with contextlib.suppress(OSError):
            os.write(2, b"" if self.silent else FIRST if self.signum is None else AGAIN)
        if self.signum is not None:
            return
        self.signum = signum
        task = self._task
        if task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.signum is not None and not self._finishing:
            raise Interrupted(self.signum)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.interrupt(signum)


class Held:
    """An async context manager that is entered and left in one task of its own, so that it can
    stay open between the coroutines of a `Drive` (a cancel scope must be left by the task that
    entered it) and no interrupt of one of them reaches it."""

    def __init__(self, context: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self._context = context
        self._ready = asyncio.Event()
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter it. Raises what entering raises."""
        self._task = asyncio.create_task(self._hold())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            entering, self._task = self._task, None  # nothing to leave, and raised here only
            entering.result()

    async def close(self) -> None:
        """Leave it, or give up entering it. Raises what leaving raises."""
        if self._task is None:
            return
        if not self._ready.is_set():
            self._task.cancel()
        self._done.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _hold(self) -> None:
        async with self._context:
            self._ready.set()
            await self._done.wait()
