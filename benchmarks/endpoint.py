"""The scripted student and teacher in a process of their own, which every benchmark asks.

    python benchmarks/endpoint.py --latency 1 --teacher-latency 5

It prints its port and serves till its standard input is closed, so it can't outlive a benchmark
that was killed. It keeps nothing of a request and does as little as it can, because it shares the
machine with what is measured. The noise of the student is drawn afresh for each rollout, the same
in every run: it depends on how often the prompt was asked about the message before.
"""

import argparse
import asyncio
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from pydantic_core import from_json, to_json

sys.path.insert(0, str(Path(__file__).parents[1]))

from verifiers_gepa.endpoint import Request
from verifiers_gepa.scripted import student, teacher


def completion(model: str, text: str, request: Request) -> bytes:
    """The body of a chat completion; usage counts words."""
    asked, answered = len(request.system.split()) + len(request.user.split()), len(text.split())
    return to_json(
        {
            "id": "chatcmpl-benchmark",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": asked,
                "completion_tokens": answered,
                "total_tokens": asked + answered,
            },
        }
    )


def stream(whole: bytes) -> bytes:
    """The same completion as the events of a stream: the text at once, then the end and the
    usage."""
    body = from_json(whole)
    (choice,) = body.pop("choices")
    usage = body.pop("usage")
    chunk = {**body, "object": "chat.completion.chunk"}
    delta = {"index": 0, "delta": choice["message"], "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    events = [
        {**chunk, "choices": [delta]},
        {**chunk, "choices": [end]},
        {**chunk, "choices": [], "usage": usage},
    ]
    return b"".join(b"data: %s\n\n" % to_json(event) for event in events) + b"data: [DONE]\n\n"


Answer = Callable[[Request, int], str]
"""The reply to a request that came so often before."""


def simulated(noise: float, seed: int) -> Answer:
    """The student and the teacher of `verifiers_gepa.simulated`."""

    def answer(request: Request, before: int) -> str:
        if request.to_teacher:
            return teacher(request.user, seed)
        return student(request.system, request.user, seed + 1_000_003 * before, noise)

    return answer


def application(
    reply: Answer, latency: float, teacher_latency: float, counts: bool
) -> web.Application:
    """Both models behind `/v1` and `/teacher/v1`; latencies are in seconds per reply. Unless
    it `counts` how often a request came before, it takes each for the first."""
    asked: Counter[tuple[str, str, str]] = Counter()

    async def answer(http: web.Request) -> web.Response:
        request = Request(http.path, from_json(await http.read()), http.headers)
        before = 0
        if counts:
            key = (str(request.body["model"]), request.system, request.user)
            before, asked[key] = asked[key], asked[key] + 1
        text = reply(request, before)
        if wait := teacher_latency if request.to_teacher else latency:
            await asyncio.sleep(wait)
        body = completion(str(request.body["model"]), text, request)
        if request.body.get("stream"):
            return web.Response(body=stream(body), content_type="text/event-stream")
        return web.Response(body=body, content_type="application/json")

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "student"}, {"id": "teacher"}]})

    app = web.Application(client_max_size=1 << 30)
    for base in ("/v1", "/teacher/v1"):
        app.router.add_post(f"{base}/chat/completions", answer)
        app.router.add_get(f"{base}/models", models)
    return app


async def serve(app: web.Application) -> None:
    """Print the port, then serve till standard input ends."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds per student reply")
    parser.add_argument("--teacher-latency", type=float, default=0.0)
    parser.add_argument("--noise", type=float, default=0.0, help="see verifiers_gepa.simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", help="a module here whose `answer` replies instead")
    options = parser.parse_args()
    reply: Answer = simulated(options.noise, options.seed)
    if options.models:
        reply = importlib.import_module(f"benchmarks.{options.models}").answer
    counts = options.models == "mixed" or options.noise > 0
    asyncio.run(serve(application(reply, options.latency, options.teacher_latency, counts)))
