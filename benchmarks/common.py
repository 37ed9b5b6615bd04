"""What the benchmarks share: the endpoint in a process of its own, a run of ours or of the host's
in another, and how a table is printed."""

import contextlib
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock
from rich import box
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent

NULL_SEAT = ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
"""The host's own way to run a chat: its `null` harness, a process per rollout."""


CORES = FileLock(Path(tempfile.gettempdir(), "verifiers-gepa-benchmarks.lock"))
"""Held by what keeps all cores busy for long, where several benchmarks run at once."""


@dataclass(frozen=True)
class Served:
    """Where the scripted models are."""

    url: str
    teacher_url: str


@dataclass(frozen=True)
class Measured:
    """A run that has ended. Seconds are those of the command after its imports."""

    folder: Path
    """Its run directory."""
    rollouts: int
    """Lines of its `traces.jsonl`."""
    wall: float
    cpu: float
    """CPU seconds of its process and of all that it started; the endpoint's are not in it."""
    memory: float
    """MB at most in use by its process."""


@contextlib.contextmanager
def served(
    latency: float = 0.0,
    teacher_latency: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    models: str = "",
) -> Iterator[Served]:
    """The endpoint in a process of its own (see `endpoint.py`)."""
    flags = ["--latency", latency, "--teacher-latency", teacher_latency, "--noise", noise]
    flags += ["--seed", seed, *(["--models", models] if models else [])]
    command = [str(part) for part in (sys.executable, HERE / "endpoint.py", *flags)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        base = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            yield Served(f"{base}/v1", f"{base}/teacher/v1")
        finally:
            process.stdin.close()


def run_gepa(endpoint: Served, folder: Path, *args: str, model: str = "student") -> Measured:
    """Our command as a new run on `support-intent-v1` below `folder`."""
    return _run("gepa", endpoint, folder, model, "--local", *args)


def run_vf_gepa(endpoint: Served, folder: Path, *args: str, model: str = "student") -> Measured:
    """The host's command with its `null` harness, in a process where nothing of ours is mounted, as
    a new run below `folder`."""
    _prepare_null()
    return _run("vf-gepa", endpoint, folder, model, *NULL_SEAT, *args)


@functools.cache
def _prepare_null() -> None:
    """Run `vf-gepa` once: its harness installs and compiles what its program needs."""
    sizes = ["--num-train", "1", "--num-val", "1", "--max-total-rollouts", "1"]
    with served() as endpoint, tempfile.TemporaryDirectory() as folder:
        _run("vf-gepa", endpoint, Path(folder), "student", *NULL_SEAT, *sizes)


def _run(command: str, endpoint: Served, folder: Path, model: str, *args: str) -> Measured:
    """Raises RuntimeError where the command fails, with the end of its output, or a rollout does:
    `vf-gepa` would score it 0 and go on."""
    run_dir = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    report, log = run_dir.with_suffix(".json"), run_dir.with_suffix(".log")
    run_dir.rmdir()
    places = ["--client.base-url", endpoint.url, "--reflection-client.base-url"]
    places += [endpoint.teacher_url, "-o", str(folder), "--run.name", run_dir.name]
    # A teacher of its own too: the endpoint's draws depend on how often a model was asked before.
    models = ["support-intent-v1", "-m", model, "--reflection-model", model]
    with log.open("wb") as output:
        subprocess.run(
            [sys.executable, HERE / "timed.py", report, command, *models, *args, *places],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            check=False,
        )
    if not report.exists() or (took := json.loads(report.read_bytes())).pop("status"):
        raise RuntimeError(f"{command} failed:\n{log.read_text('utf-8', 'replace')[-4000:]}")
    with (run_dir / "traces.jsonl").open("rb") as lines:
        traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    if errors := [error for trace in traces for error in trace.get("errors", ())]:
        raise RuntimeError(f"a rollout of {command} failed: {errors[0]}")
    return Measured(run_dir, len(traces), **took)


def environment() -> dict[str, str]:
    """This process's, with the tasksets of the checkout, so that both commands find the same.
    Bytecode is kept, whatever this process does: else the host's harness, which starts a program
    per rollout, compiles its libraries every time."""
    paths = [str(path) for path in (ROOT / "environments").iterdir()]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {key: one for key, one in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, inherited)])}


def machine() -> str:
    """The machine and the versions that figures were measured with, on one line."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = named[0] if named else model
    packages = ", ".join(f"{name} {version(name)}" for name in ("verifiers", "gepa"))
    return f"{cpus} CPUs ({model}), Python {platform.python_version()}, {packages}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table on stdout, in Markdown, between its title and the machine; all columns but the
    first are figures."""
    table = Table(box=box.MARKDOWN)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, 160)
    console.print(f"{title}\n", table, f"\n{machine()}\n", highlight=False)
