"""Rollouts per second and CPU seconds per rollout: ours, the host's, and what bounds them.

    python benchmarks/throughput.py

Six ways to have the student answer the same messages under the same prompt, at a latency of 0 and
of 1 s, 128 in flight, in turn, each latency with an endpoint in a process of its own:

- `gepa`, the rollouts of a run (attempts, judging, the journal) with `direct-chat`;
- `gepa --workers 2`, the same with the episodes in two processes;
- `vf-gepa`, the host's command with its `null` harness;
- a plain HTTP client through the host's interception servers, one session per request, which every
  harness that obeys the host's contract must pay: with 32 rollouts per server, the host's default,
  and with 8, which `gepa` chooses for a run like this;
- a plain HTTP client straight to the endpoint: its ceiling.

Each is a process of its own, measured after its imports and a first batch; CPU is that of the
process and of what it starts, never the endpoint's.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
from pydantic_core import to_json

from benchmarks.common import Served, environment, print_table, run_vf_gepa, served
from benchmarks.timed import cpu

WARM = 128
"""Rollouts of the first batch, which is not measured: it opens the connections."""

Figures = tuple[float, float]
"""Rollouts per second, CPU seconds per rollout."""


def arguments(url: str, folder: Path, concurrent: int, workers: int) -> list[str]:
    """The command line that the rollouts of a run are configured with."""
    line = ["support-intent-v1", "--local", "-m", "student", "-c", str(concurrent)]
    line += ["--client.base-url", url, "-o", str(folder), "--run.name", "run"]
    return line + (["--workers", str(workers)] if workers else [])


async def timed(batch: Callable[[int], Awaitable[Any]], count: int) -> Figures:
    """Warm up, then what `count` rollouts take."""
    await batch(WARM)
    wall, spent = time.perf_counter(), cpu()
    await batch(count)
    return count / (time.perf_counter() - wall), (cpu() - spent) / count


def requests(tasks: list[Any]) -> list[bytes]:
    """What `direct-chat` sends for each task."""
    return [
        to_json(
            {
                "model": "student",
                "messages": [
                    {"role": "system", "content": task.data.system_prompt},
                    {"role": "user", "content": task.data.prompt_text},
                ],
            }
        )
        for task in tasks
    ]


async def post(http: aiohttp.ClientSession, url: str, secret: str, body: bytes) -> None:
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    async with http.post(f"{url}/chat/completions", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        json.loads(await answer.read())


async def spread(count: int, concurrent: int, one: Callable[[int], Awaitable[None]]) -> None:
    """`one(number)` for `count` numbers, `concurrent` at once."""
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(lane() for _ in range(concurrent)))


def plain(url: str, concurrent: int, tasks: list[Any], count: int) -> Figures:
    """Straight to the endpoint."""
    bodies = requests(tasks)

    async def main() -> Figures:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:

            async def one(number: int) -> None:
                await post(http, url, "none", bodies[number % len(bodies)])

            return await timed(lambda batch: spread(batch, concurrent, one), count)

    return asyncio.run(main())


def interception(url: str, concurrent: int, tasks: list[Any], count: int, servers: Any) -> Figures:
    """Through the host's interception, of this config."""
    import verifiers.v1 as vf
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.interception import make_interception
    from verifiers.v1.session import RolloutSession
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    bodies = requests(tasks)
    context = ModelContext(model="student", client=vf.EvalClientConfig(base_url=url))

    def session(task: Any) -> RolloutSession:
        about: Any = TraceTask(type="Task", data=task.data, key=task.key, hash=task.hash)
        return RolloutSession(
            ctx=context, trace=Trace(task=about, agent=AgentInfo(config=AgentConfig()))
        )

    async def main() -> Figures:
        async with AsyncExitStack() as stack:
            pool = make_interception(servers, requires_tunnel=False)
            await stack.enter_async_context(pool)
            connector = aiohttp.TCPConnector(limit=0)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

            async def one(number: int) -> None:
                body = bodies[number % len(bodies)]
                async with pool.acquire(session(tasks[number % len(tasks)])) as (base, secret, _):
                    await post(http, f"{base}/v1", secret, body)

            return await timed(lambda batch: spread(batch, concurrent, one), count)

    return asyncio.run(main())


def rollouts(argv: list[str], count: int) -> Figures:
    """The rollouts of a run, as its search asks for them."""
    from verifiers.v1.gepa.command.sources import parse_config
    from verifiers.v1.gepa.prepare.plan import load_env
    from verifiers.v1.gepa.record.journal import Journal
    from verifiers.v1.gepa.record.replay import Replay
    from verifiers.v1.gepa.rollouts.measurements import Job
    from verifiers.v1.gepa.rollouts.rollouts import Rollouts
    from verifiers.v1.gepa.spend.budget import Budget
    from verifiers.v1.utils.heap import frozen_heap

    config, _ = parse_config(argv)
    env = load_env(config)
    tasks = list(env.taskset.select(config.select))
    config.run_dir.mkdir()
    prompt = str(tasks[0].data.system_prompt)
    measuring = Rollouts(env, config, Budget(count + WARM), Journal(config.run_dir), Replay())

    async def batch(size: int) -> None:
        jobs = [Job(prompt, tasks[number % len(tasks)], "val") for number in range(size)]
        done = await measuring.measure(jobs, "a batch")
        assert all(one.score is not None for one in done)

    async def main() -> Figures:
        with frozen_heap():
            async with measuring.serving():
                return await timed(batch, count)

    return asyncio.run(main())


def part(name: str, url: str, concurrent: int, count: int) -> Figures:
    """One of ours, in this process, with the endpoint at `url`."""
    import verifiers_gepa  # noqa: F401
    from verifiers.v1.gepa.command.sources import parse_config
    from verifiers.v1.gepa.prepare.plan import load_env
    from verifiers.v1.gepa.rollouts.interception import interception_of

    with tempfile.TemporaryDirectory() as folder:
        workers = int(name.partition("--workers ")[2] or 0)
        argv = arguments(url, Path(folder), concurrent, workers)
        if name.startswith("gepa"):
            return rollouts(argv, count)
        config, _ = parse_config(argv)
        env = load_env(config)
        tasks = list(env.taskset.select(config.select))
        if name == PLAIN:
            return plain(url, concurrent, tasks, count)
        servers = config.interception if name == SERVER else interception_of(env, config)
        return interception(url, concurrent, tasks, count, servers)


def in_process(
    name: str, endpoints: Sequence[Served], concurrent: int, count: int
) -> list[Figures]:
    """`part` with each endpoint in turn, in a process of its own, because importing takes
    seconds."""
    line = [sys.executable, __file__, "--part", name, "--url", *(one.url for one in endpoints)]
    line += ["-c", str(concurrent), "--rollouts", str(count)]
    done = subprocess.run(line, stdout=subprocess.PIPE, env=environment(), check=True)
    return [(speed, spent) for speed, spent in json.loads(done.stdout.splitlines()[-1])]


def host(endpoint: Served, concurrent: int, count: int) -> Figures:
    """The host's command: the seed prompt's val pass of `count` tasks, and nothing else."""
    sizes = ["--num-train", "3", "--num-val", str(count), "--max-total-rollouts", str(count)]
    with tempfile.TemporaryDirectory() as folder:
        run = run_vf_gepa(endpoint, Path(folder), *sizes, "-c", str(concurrent))
        return run.rollouts / run.wall, run.cpu / run.rollouts


OURS = "gepa"
HOST = "vf-gepa, null harness"
SERVER = "plain client, interception"
PLAIN = "plain client"
PARTS = (OURS, "gepa --workers 2", SERVER, "plain client, 8 per server", PLAIN)


def main(latencies: list[float], concurrent: int, count: int, few: int, repeats: int) -> None:
    """Print the table. Ours and the interception's, whose ratio matters most, are the median of
    `repeats`."""
    figures: dict[str, list[list[Figures]]] = {name: [] for name in PARTS}
    with ExitStack() as stack:
        endpoints = [stack.enter_context(served(latency)) for latency in latencies]
        for repeat in range(repeats):
            for name in PARTS if repeat == 0 else (OURS, SERVER):
                figures[name].append(in_process(name, endpoints, concurrent, count))
        figures[HOST] = [[host(endpoint, concurrent, few) for endpoint in endpoints]]
    rows = []
    for number, latency in enumerate(latencies):
        medians = {
            name: tuple(map(median, zip(*(run[number] for run in runs), strict=True)))
            for name, runs in figures.items()
        }
        for name, (speed, spent) in medians.items():
            rows.append(
                (
                    name,
                    f"{latency:g} s",
                    f"{speed:,.1f}",
                    f"{spent * 1000:,.1f}",
                    f"{speed / medians[HOST][0]:,.1f}",
                    f"{spent / medians[SERVER][1]:,.2f}",
                )
            )
    columns = ("", "latency", "rollouts/s", "CPU ms each", "times vf-gepa", "CPU / interception")
    print_table(f"Throughput, {concurrent} in flight", columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("-c", "--concurrent", type=int, default=128)
    parser.add_argument("--rollouts", type=int, default=512, help="of each part")
    parser.add_argument("--host-rollouts", type=int, default=20, help="vf-gepa does about 2/s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--url", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        sizes = options.concurrent, options.rollouts
        print(json.dumps([part(options.part, url, *sizes) for url in options.url]))
    else:
        main(
            options.latency,
            options.concurrent,
            options.rollouts,
            options.host_rollouts,
            options.repeats,
        )
