"""A process that runs episodes for `workers.py`: the host's env server, alone in it.

It is run as a program: `worker.py` with one line of JSON on standard input, and it serves till that
is closed, which the system does for a parent that was killed. What ends it otherwise it leaves in a
file, so that the run can say more than an exit status.
"""

import contextlib
import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CAUSE_CHARS = 1_000
"""How much of what ended it is left, in characters."""


class Parent:
    """What the host's server listens to for the end of its parent, like the pipe of a pool."""

    def recv(self) -> None:
        # Not `sys.stdin`: a thread that holds its lock makes Python abort instead of exit.
        while os.read(0, 1024):
            pass


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    try:
        serve(order)
    except BaseException as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:CAUSE_CHARS]
        with contextlib.suppress(OSError):  # then the exit status must do
            Path(order["cause"]).write_text(words, encoding="utf-8", errors="replace")
        raise


def serve(order: dict[str, Any]) -> None:
    sys.path[:] = order["path"]  # what the parent can import, this must
    from verifiers.v1.serve.pool import serve_env
    from verifiers.v1.utils.logging import LIBRARY_LOGGER, setup_logging

    urls, named = order["relay"]
    if named or any("?" in url for url in urls):  # most need none of our modules
        import_module("verifiers_gepa")  # which lets the next one be found
        from verifiers.v1.gepa.rollouts.relay import use_relay

        use_relay(urls, named)
    setup_logging("WARNING")
    logging.getLogger(f"{LIBRARY_LOGGER}.interception").setLevel("ERROR")
    serve_env(
        max_workers=1, address=order["address"], death_pipe=Parent(), config_data=order["config"]
    )


if __name__ == "__main__":
    main()
