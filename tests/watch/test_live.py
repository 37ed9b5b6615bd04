"""The live view never says more than the record, and leaves the terminal as it was."""

import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from tests.support import (
    BASE,
    Endpoint,
    Reply,
    Request,
    Run,
    command_env,
    good_student,
    placed,
    scripted,
    turns,
)
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.run import Run as Parts
from verifiers.v1.gepa.runner import run_gepa
from verifiers.v1.gepa.watch.live import Count, Snapshot, shown, take_snapshot

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COUNT = re.compile(r"^(optimize|validate|test) (?:.* )?(\d+)/(\d+) rollouts", re.MULTILINE)


class Watch:
    """Runs with a view, and what it showed."""

    def __init__(self, folder: Path, width: int = 60) -> None:
        self.done = Run(0, folder / "run0")
        self.samples: list[tuple[Snapshot, int]] = []
        """What was to be seen, and the charged lines of the journal after that."""
        self._parts: Parts | None = None
        self._width = width

    def sample(self) -> None:
        if self._parts is not None:
            self.samples.append((take_snapshot(self._parts), self.done.charged))

    def run(self, endpoint: Endpoint, *flags: str) -> str:
        """Run; everything that went to the terminal."""
        console = Console(file=StringIO(), force_terminal=True, width=self._width, _environ={})

        @contextlib.contextmanager
        def view(parts: Parts) -> Iterator[None]:
            self._parts = parts
            with shown(parts, console):
                yield
            self.sample()
            self._parts = None

        where = placed(endpoint, self.done.folder.parent, "run0")
        config, _ = parse_config([*BASE[:-2], *where, *flags])
        run_gepa(load_env(config), config, view)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()


def test_the_view_equals_the_journal_and_ends_at_its_end(tmp_path: Path) -> None:
    watch, turn = Watch(tmp_path), turns()

    def student(request: Request) -> Reply | str:
        # One rollout at a time: the one before is on record and counted.
        watch.sample()
        time.sleep(0.05)
        if request.user == "question 5" and turn(request) < 4:
            return Reply.error(500, "oops \x1b]0;owned\x07")
        return good_student(request)

    flags = ["-c", "1", "--taskset.size", "12", "--num-test", "4", "--max-total-rollouts"]
    with scripted(student) as endpoint:
        output = watch.run(endpoint, *flags, "12")
        seen = [now.charged.done for now, _ in watch.samples]
        assert seen == [journal for _, journal in watch.samples]
        assert seen == sorted(seen)
        assert set(seen) == set(range(13))
        last = watch.samples[-1][0]
        assert (last.phase, last.progress) == ("test", Count(8, 8))
        assert (last.found.seed_mean, last.found.best_mean, last.found.frontier) == (0.0, 1.0, 1)
        assert [role.name for role in last.spent.roles] == ["student", "teacher"]
        assert any("500: " in cause for now, _ in watch.samples for cause in now.troubles.waiting)
        check_frames(output)
        watch.samples.clear()
        again = watch.run(endpoint, *flags, "20", "--resume")
    assert min(now.charged.done for now, _ in watch.samples) == 12
    assert int(COUNT.findall(ESCAPE.sub("", again))[0][1]) == 12
    assert watch.samples[-1][0].charged.done == watch.done.charged == 20


def check_frames(output: str) -> None:
    """No frame is wider than the terminal, none takes a count back, nothing of a model's is
    obeyed."""
    assert "\x1b]" not in output
    text = ESCAPE.sub("", output).replace("\r", "\n")
    assert max(map(cell_len, text.splitlines())) <= 60
    frames = COUNT.findall(text)
    for phase, total in (("optimize", 12), ("validate", 8), ("test", 8)):
        counts = [int(done) for name, done, of in frames if (name, int(of)) == (phase, total)]
        assert counts == sorted(counts)
        assert counts or phase != "optimize"
    assert frames[-1] == ("test", "8", "8")
    assert "accepted: val mean 1.0000" in text
    assert "failures" in text
    assert "search    12 of 12 rollouts" in text


def test_a_real_terminal_is_resized_and_interrupted(tmp_path: Path) -> None:
    def student(request: Request) -> str:
        time.sleep(0.02)
        return good_student(request)

    with scripted(student) as endpoint:
        argv = [sys.executable, "-m", "verifiers_gepa", *BASE, *placed(endpoint, tmp_path, "run0")]
        argv += ["--max-total-rollouts", "100000", "-c", "1"]
        env = {k: v for k, v in command_env(endpoint).items() if k not in ("COLUMNS", "LINES")}
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, argv, {**env, "TERM": "xterm-256color"})
        resize(terminal, 60)
        before = read_until(terminal, "proposals ")
        resize(terminal, 40)
        after = ""
        # What was under way when it was resized is as wide as before; two frames after that count.
        while len(narrow(after)) < 2 and len(drawn(after)) < 20:
            after += read_until(terminal, "proposals ")
        os.write(terminal, b"\x03")
        rest = read_until(terminal, None)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert "INFO run directory: " in ESCAPE.sub("", before)
    assert "finishing up, please wait" in ESCAPE.sub("", rest)
    assert "interrupted (" in ESCAPE.sub("", rest)
    for lines, width in ((drawn(before), 60), (narrow(after), 40)):
        assert lines
        assert max(map(cell_len, lines)) <= width
    # The cursor is there again.
    assert rest.rindex("\x1b[?25h") > rest.rfind("\x1b[?25l")


def drawn(output: str) -> list[str]:
    """The line of each frame that counts the rollouts."""
    return [line for line in re.split(r"[\r\n]+", ESCAPE.sub("", output)) if COUNT.match(line)]


def narrow(output: str) -> list[str]:
    """The same from the first one on that fits into 40 columns."""
    return list(itertools.dropwhile(lambda line: cell_len(line) > 40, drawn(output)))


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def read_until(terminal: int, text: str | None, seconds: float = 60.0) -> str:
    """What the terminal shows up to and with `text`, or to its end."""
    output, end = b"", time.monotonic() + seconds
    while text is None or text not in ESCAPE.sub("", output.decode("utf-8", "replace")):
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, output.decode("utf-8", "replace")
        try:
            output += os.read(terminal, 65536)
        except OSError:  # nobody writes any more
            break
    return output.decode("utf-8", "replace")
