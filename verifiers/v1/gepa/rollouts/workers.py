"""Episodes in processes of their own on this machine, where one core is what limits a run.

Each worker is one of the host's env servers, with a client of its own here: an episode goes to the
one with the least to do. The host's pool has a broker in between, which never notices that a worker
has died; here that fails the worker's episodes, as a fault that may pass, and starts another one.
The same for one that hangs: a worker holds an episode to its timeouts itself, as long as it does
anything at all. Judging, budget and journal stay with the run.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.env import Env
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.faults.privacy import keys_of, scrub
from verifiers.v1.gepa.rollouts import worker as program
from verifiers.v1.gepa.rollouts.interception import interception_of
from verifiers.v1.gepa.rollouts.relay import student_urls
from verifiers.v1.serve import EnvClient
from verifiers.v1.task import Task
from verifiers.v1.trace import Error, TraceTask

logger = logging.getLogger(__name__)

START_SECONDS = 600.0
"""How long a worker may take till it serves. Importing takes seconds, on a busy machine minutes."""

STARTS = 3
"""How often a worker is started that a signal ends before it serves: a machine that is short of
memory kills what grows, and may have some again. An exit status would be the same each time."""

GRACE_SECONDS = 60.0
"""How long a worker may leave the question whether it is alive without an answer, once an episode's
time is over. Scoring that never awaits holds an answer up, and is not to be taken for a hang."""

STOP_SECONDS = 15.0
"""How long it may take to free what it holds before it is killed."""

STDERR = 2

Calls = dict[str, dict[str, list[dict[str, Any]]]]
"""By trace, what a worker has said so far of its calls, as in a line of `traces.jsonl`."""


class Worker:
    """A process and the client to it."""

    def __init__(self, process: Process, socket: Path) -> None:
        self.process = process
        self.address = f"ipc://{socket}"
        self.cause = socket.with_suffix(".cause")
        """The file in which it says what ended it."""
        self.client = EnvClient(self.address)
        self.ended = asyncio.create_task(process.wait())
        self.busy = 0
        """Episodes that it runs."""
        self.given_up = ""
        """Why the run killed it, if it did."""
        self.heard = 0.0
        """When it last said something of an episode, by the loop's clock."""

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that was not the run's."""
        code = self.process.returncode
        return code is not None and code < 0 and not self.given_up

    def status(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        if self.given_up:
            return self.given_up
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        cause = self.cause.read_text("utf-8") if self.cause.exists() else ""
        return f"exit status {code}: {cause}" if cause else f"exit status {code}"

    async def serves(self) -> bool:
        """Wait till it serves or has ended. Whether it serves."""
        starting = asyncio.create_task(self.client.wait_for_server_startup(math.inf))
        either = {starting, self.ended}
        try:
            done, _ = await asyncio.wait(
                either, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self.given_up = f"killed: it did not serve within {START_SECONDS:g} seconds"
            return starting in done and self.alive and starting.result() is None
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def watch(self, seconds: float) -> None:
        """Kill it once it gives no sign of life, which it is asked for after `seconds`. As long as
        it does, an episode that has not ended is finalized or tried again, in its own time."""
        await asyncio.sleep(seconds)
        while await self._answers():
            await asyncio.sleep(GRACE_SECONDS)
        self.given_up = f"killed: no sign of life for {GRACE_SECONDS:g} seconds"
        self.kill()

    async def _answers(self) -> bool:
        """Whether it says anything within `GRACE_SECONDS`, about its health or an episode."""
        asked = asyncio.get_running_loop().time()
        try:
            healthy = await self.client.health(GRACE_SECONDS)
        except Exception:  # noqa: BLE001 - no answer, whatever is the matter
            healthy = False
        return healthy or self.heard > asked

    def kill(self) -> None:
        """End it with what it has started, which is in its session."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End it, in order if it still can."""
        await self.client.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self.kill()
            await self.ended


class Workers:
    """`count` workers for the episodes of one env."""

    def __init__(self, env: Env, config: GEPAConfig, count: int) -> None:
        self._env_id = env.config.env_id
        self._config = worker_config(env, config)
        self._relay = student_urls(config)
        self._keys = keys_of(config)
        limit = config.timeout.episode
        self._limit = math.inf if limit is None else limit
        self._count = count
        self._numbers = itertools.count()
        self._folder = ""
        self._places: list[asyncio.Task[Worker]] = []
        """The worker of each place, or its start."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold the workers. Raises `Fault` where one does not start."""
        # A socket's path must be short, which not every TMPDIR is.
        with tempfile.TemporaryDirectory(prefix="gepa-workers-", dir="/tmp") as self._folder:
            self._places = [asyncio.create_task(self._start()) for _ in range(self._count)]
            try:
                await asyncio.gather(*self._places)
                yield
            finally:
                for place in self._places:
                    place.cancel()
                workers = await asyncio.gather(*self._places, return_exceptions=True)
                stops = [one.stop() for one in workers if isinstance(one, Worker)]
                await asyncio.gather(*stops, return_exceptions=True)

    async def run(self, task: Task, context: ModelContext, calls: Calls) -> Episode[Any, Any, Any]:
        """One episode. Where no worker finished it, an episode without traces that says why.
        `calls` is filled while it runs: it holds also what is not in the episode in the end. Raises
        `Fault` where a worker has to be started again and can't be."""

        def note(delta: dict[str, Any]) -> None:
            worker.heard = loop.time()
            of_trace = calls.setdefault(delta["trace"], {"calls": [], "extra_usage": []})
            for name, items in of_trace.items():
                items += delta.get(name, ())

        loop = asyncio.get_running_loop()
        worker = await self._take()
        worker.busy += 1
        data = task.data.model_dump(mode="json")
        running = asyncio.create_task(
            worker.client.run(context.client, context.model, context.sampling, data, note)
        )
        watching = asyncio.create_task(worker.watch(self._limit))
        try:
            await asyncio.wait({running, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                worker.heard = loop.time()
                return running.result()
            return self._failed(task, f"a worker process ended ({worker.status()})")
        except Exception as error:  # noqa: BLE001 - the server's words, or an answer that is no episode
            return self._failed(task, f"a worker gave no episode: {error}")
        finally:
            worker.busy -= 1
            for one in (running, watching):
                one.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)

    async def _take(self) -> Worker:
        """The worker with the least to do; the dead are replaced meanwhile."""
        while True:
            ready: list[Worker] = []
            for number, place in enumerate(self._places):
                if not place.done():
                    continue
                worker = place.result()
                if worker.alive:
                    ready.append(worker)
                    continue
                status = scrub(worker.status(), self._keys)
                logger.warning("a worker process ended (%s): starting another", status)
                self._places[number] = asyncio.create_task(self._replace(worker))
            if ready:
                return min(ready, key=lambda worker: worker.busy)
            await asyncio.wait(self._places, return_when=asyncio.FIRST_COMPLETED)

    async def _replace(self, dead: Worker) -> Worker:
        await dead.stop()
        return await self._start()

    async def _start(self) -> Worker:
        """A worker that serves. Raises `Fault` where none gets there."""
        starts = 0
        while True:
            worker = await self._launch()
            if worker.alive:
                return worker
            starts += 1
            status = scrub(worker.status(), self._keys)
            if not worker.killed or starts == STARTS:
                raise Fault(f"a worker process could not start ({status})")
            logger.warning("a worker process ended as it started (%s): starting another", status)

    async def _launch(self) -> Worker:
        """A worker that serves, or one that has ended before."""
        # A new address each time: the client of a dead one would send its requests to the next.
        socket = Path(self._folder) / str(next(self._numbers))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the folder of the program holds modules named like some of the library
            str(program.__file__),
            stdin=PIPE,
            stdout=STDERR,
            start_new_session=True,  # a Ctrl-C is the run's to handle
        )
        worker = Worker(process, socket)
        order = {
            "path": sys.path,
            "address": worker.address,
            "cause": str(worker.cause),
            "config": self._config,
            "relay": self._relay,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        served = False
        try:
            served = await worker.serves()
        finally:
            if not served:
                worker.kill()  # it holds nothing yet
                await worker.stop()
        return worker

    def _failed(self, task: Task, message: str) -> Episode:
        about: TraceTask[Any] = TraceTask(
            type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
        )
        error = Error(type="WorkerError", message=message)
        return Episode(env=EnvInfo(id=self._env_id), task=about, errors=[error])


def worker_config(env: Env, config: GEPAConfig) -> dict[str, Any]:
    """The env of `config` alone, as JSON: what a worker builds it from."""
    fields = set(vf.env_config_type(config.taskset.id, config.id).model_fields)
    data = config.model_dump(mode="json", include=fields)
    data["interception"] = interception_of(env, config).model_dump(mode="json")
    data["taskset"]["system_prompt"] = None  # a worker gets it with each task
    return data
