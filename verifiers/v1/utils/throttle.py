"""How many things may be in flight, adapted to what the other side bears.

A refusal for going too fast halves the limit, steady success raises it again by a quarter per round
of the limit, up to where it began. Refusals
of what was already in flight when the limit was halved say nothing new and don't halve it again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Throttle:
    """An adaptive semaphore. `most` is the limit that it starts with and never exceeds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = most
        self.lowest = most
        """The lowest limit so far."""
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = 0
        self._deaf_until = 0
        self._successes = 0

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Hold one place; yields its number, to be handed to `refused`."""
        while self.in_flight >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # the place that this one was woken for goes to the next
                raise
        self.in_flight += 1
        self._started += 1
        number = self._started
        try:
            yield number
        finally:
            self.in_flight -= 1
            self._wake()

    def refused(self, number: int) -> bool:
        """Place `number` was told to slow down; whether that lowered the limit."""
        self._successes = 0
        if number <= self._deaf_until or self.limit == 1:
            return False
        self.limit = max(1, min(self.limit, self.in_flight) // 2)
        self.lowest = min(self.lowest, self.limit)
        self._deaf_until = self._started
        return True

    def succeeded(self) -> None:
        """One place's work went through unhindered."""
        if self.limit == self.most:
            return
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(self.most, self.limit + max(1, self.limit // 4))
            self._wake()

    def _wake(self) -> None:
        free = self.limit - self.in_flight
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
