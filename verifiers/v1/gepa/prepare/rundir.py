"""The run directory: one writer at a time, and what is written there before the first rollout."""

import contextlib
import json
import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.prepare.checks import ConfigError
from verifiers.v1.gepa.record.files import CONFIG_FILE, LOCK_FILE, OWNER_FILE
from verifiers.v1.utils.texts import write_text


@contextlib.contextmanager
def locked(config: GEPAConfig) -> Iterator[Path | None]:
    """Hold the run directory, made and if asked for emptied; None where nothing is saved. Raises
    `ConfigError` where another process holds it, naming that, or where it can't be written.

    The lock is the operating system's, so that of a process that died is free again.
    """
    if not config.save_results:
        yield None
        return
    run_dir = config.run_dir
    lock = FileLock(run_dir / LOCK_FILE, timeout=0)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        owner = _owner(run_dir)
        raise ConfigError(f"{run_dir} is in use by {owner}: wait for it or stop it") from error
    except OSError as error:
        raise _unwritable(error) from error
    try:
        if config.clean:
            _empty(run_dir)
        write_json(run_dir / OWNER_FILE, {"pid": os.getpid(), "host": socket.gethostname()})
    except OSError as error:
        lock.release()
        raise _unwritable(error) from error
    try:
        yield run_dir
    finally:
        (run_dir / OWNER_FILE).unlink(missing_ok=True)
        lock.release()


def write_config(config: GEPAConfig) -> Path:
    """Write the resolved config, re-runnable with `gepa @ <path>`; its path."""
    path = config.run_dir / CONFIG_FILE
    settings = config.model_dump(mode="json")
    if config.run.dir == config.run.name:
        settings["run"]["dir"] = None  # so that another --run.name is another directory
    try:
        write_json(path, settings)
    except OSError as error:
        raise _unwritable(error) from error
    return path


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, making the folders above it. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def resume_command(config: GEPAConfig) -> str:
    """The command line that goes on with the run."""
    return shlex.join(["gepa", "@", str(config.run_dir / CONFIG_FILE), "--resume"])


def _unwritable(error: OSError) -> ConfigError:
    return ConfigError(f"the run directory can't be written: {error}")


def _empty(run_dir: Path) -> None:
    for path in run_dir.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _owner(run_dir: Path) -> str:
    try:
        owner = json.loads((run_dir / OWNER_FILE).read_bytes())
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"
