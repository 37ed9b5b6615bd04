"""Lines appended together: each is in the file whole, or not at all and its writer is told."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import Request, run, scripted
from verifiers.v1.utils.appender import Appender, write_lines


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """A disk that is full: no file of this process grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_each_line_is_where_its_writer_was_told(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"before\n")
    lines = [b"%d" % number * 50 + b"\n" for number in range(40)]
    appender = Appender(path)
    offsets = await asyncio.gather(*map(appender.append, lines))
    data = path.read_bytes()
    assert len(data) == len(b"before\n") + sum(map(len, lines))
    assert [
        data[start : start + len(line)] for start, line in zip(offsets, lines, strict=True)
    ] == lines


async def test_a_line_that_was_begun_is_written_although_its_writer_is_cancelled(
    tmp_path: Path,
) -> None:
    appender = Appender(tmp_path / "lines")
    writers = [asyncio.create_task(appender.append(b"%d\n" % number)) for number in range(3)]
    await asyncio.sleep(0)
    for writer in writers:
        writer.cancel()
    ended = await asyncio.gather(*writers, return_exceptions=True)
    assert [type(end) for end in ended] == [asyncio.CancelledError] * 3
    assert (tmp_path / "lines").read_bytes() == b"0\n1\n2\n"


async def test_of_lines_written_together_those_that_fit_stay_and_the_rest_leaves_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines"
    lines = [b"a" * 99 + b"\n", b"b" * 99 + b"\n", b"c" * 99 + b"\n", b"d\n"]
    with file_limit(250):
        offsets, error = write_lines(path, lines)
        assert offsets == [0, 100]
        assert isinstance(error, OSError)
        assert path.read_bytes() == lines[0] + lines[1]
        appender = Appender(path)
        results = await asyncio.gather(
            appender.append(b"e" * 40 + b"\n"),
            *(appender.append(line) for line in lines),
            return_exceptions=True,
        )
    assert results[0] == 200  # alone in its write, as nothing was under way
    assert all(isinstance(result, OSError) for result in results[1:])
    assert path.read_bytes() == lines[0] + lines[1] + b"e" * 40 + b"\n"


async def test_a_file_that_cannot_be_opened_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        await Appender(tmp_path).append(b"line\n")


def test_a_full_disk_stops_the_run_which_keeps_what_fitted_and_goes_on(tmp_path: Path) -> None:
    """Every trace takes some 100 kB, so that none but the journal is too large for the disk."""

    def student(request: Request) -> str:
        return "right" + " " * 100_000 if "GOOD" in request.system else "wrong" + " " * 100_000

    with scripted(student) as endpoint:
        with file_limit(1_000_000):
            full = run(endpoint, tmp_path, "--max-total-rollouts", "24")
        assert full.status == 2
        assert "the journal could not be written" in full.result["message"]
        kept = full.lines("traces.jsonl")  # all of them can be read
        assert len(kept) == full.result["rollouts"]["charged"]
        assert 0 < len(kept) < 24
        size = len(endpoint.requests)
        rest = run(
            endpoint, tmp_path, "--max-total-rollouts", "24", "--resume", "--run.name", "run0"
        )
    assert rest.status == 0
    whole = full.result
    assert whole["status"] == "finished"
    assert whole["rollouts"]["replayed"] == len(kept)
    sent = sum(not request.to_teacher for request in endpoint.requests[size:])
    assert sent == whole["rollouts"]["charged"] - len(kept)
