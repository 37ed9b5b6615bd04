"""Processes that can be killed, without importing verifiers anew for each.

A process that imports verifiers costs seconds. `Forks` starts one that does, and forks it for every
command: each is a process of its own with its own signals, standard streams and exit status.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from verifiers_gepa.endpoint import Endpoint

ROOT = Path(__file__).parents[1]


@dataclass
class Child:
    """A command that was started."""

    pid: int
    out: Path
    err: Path
    parent: "Forks"

    def kill(self, signum: int = signal.SIGKILL) -> None:
        os.kill(self.pid, signum)

    def kill_at(self, endpoint: Endpoint, requests: int, seconds: float = 60.0) -> None:
        """Kill it once the endpoint has seen so many requests, and wait for its end."""
        endpoint.wait_for(requests, seconds)
        self.kill()
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Its exit status, negative for the signal that killed it."""
        return int(self.parent.ask({"wait": self.pid}))


class Forks:
    """A context manager; `start` runs `gepa` with these arguments in a process of its own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self._env = {**env, "HOME": str(self.home)}
        self._count = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.forks"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=self._env, cwd=ROOT, text=True
        )
        assert self.ask({"ready": True}) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, *argv: str) -> Child:
        self._count += 1
        out = self.folder / f"out{self._count}"
        err = self.folder / f"err{self._count}"
        order = {"argv": argv, "out": str(out), "err": str(err), "cwd": str(self.folder)}
        return Child(int(self.ask(order)), out, err, self)

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def _run(order: dict[str, Any]) -> None:
    """The forked child: run the command, then end without the parent's clean-up."""
    status = 1
    try:
        os.chdir(order["cwd"])
        for number, name in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
            handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
            os.dup2(handle, number)
        from verifiers.v1.cli.gepa import main

        status = main(order["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _serve() -> None:
    from verifiers.v1.cli import gepa  # noqa: F401 - what every command needs

    for line in sys.stdin:
        order = json.loads(line)
        if "ready" in order:
            answer: Any = "ready"
        elif "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if not answer:
                _run(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    import verifiers_gepa  # noqa: F401 - the mount

    _serve()
