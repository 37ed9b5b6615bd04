"""A process that runs episodes for `workers.py`: the host's env server, alone in it, which mends
what can't be sent (`mended.py`).

It is run as a program: `worker.py` with one line of JSON on standard input, and it serves till that
is closed, which the system does for a parent that was killed. What ends it otherwise it leaves in a
file, so that the run can say more than an exit status.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

CAUSE_CHARS = 1_000
"""How much of what ended it is left, in characters."""


def end_with_parent() -> None:
    """End this process in order once standard input is closed. To be run in a thread."""
    # Not `sys.stdin`: a thread that holds its lock makes Python abort instead of exit.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def stop(*_: object) -> None:
    """On SIGINT asyncio cancels what it runs, and so the server frees what it holds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGINT)


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
    import_module("verifiers_gepa")  # which lets our modules be found
    from verifiers.v1.gepa.rollouts.mended import MendedServer
    from verifiers.v1.utils.loaders import resolve_env_config
    from verifiers.v1.utils.logging import LIBRARY_LOGGER, setup_logging

    urls, named = order["relay"]
    if named or any("?" in url for url in urls):  # most need no relay
        from verifiers.v1.gepa.rollouts.relay import use_relay

        use_relay(urls, named)
    setup_logging("WARNING")
    logging.getLogger(f"{LIBRARY_LOGGER}.interception").setLevel("ERROR")
    # What of an episode can't be sent as it grows goes out mended with its end.
    logging.getLogger(f"{LIBRARY_LOGGER}.serve.delta").setLevel("ERROR")
    logging.getLogger("asyncio").addFilter(
        lambda record: "DeltaStreamer.flush" not in record.getMessage()
    )
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        MendedServer.run_server(
            config=resolve_env_config(order["config"]), address=order["address"]
        )


if __name__ == "__main__":
    main()
