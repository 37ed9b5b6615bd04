"""What the small commands have in common: arguments to a config, work, one answer on stdout."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_config import BaseConfig, cli
from pydantic_config.cli import ConfigFileError

from verifiers.v1.utils.setting_mistakes import explain_settings, explain_stray
from verifiers.v1.utils.texts import open_streams, print_text

Config = TypeVar("Config", bound=BaseConfig)


def run_command(
    name: str,
    usage: str,
    config_type: type[Config],
    operands: str,
    work: Callable[[Config], tuple[str, int]],
    args: Sequence[str],
    errors: str = "surrogateescape",
) -> int:
    """Run `work` on the config that `args` make, print its text, and return its exit status: 2 for
    a mistake, with one line that says what is wrong. Arguments before the first flag are the
    field `operands`. `errors` says how what the output can't hold is printed."""
    open_streams()
    if not args:
        sys.stderr.write(usage)
        return 2
    flags = [*([] if args[0].startswith("-") else [f"--{operands}"]), *args]
    try:
        if "-h" in flags or "--help" in flags:
            sys.stdout.write(usage + "\n")
        text, status = work(cli(config_type, args=flags))
    except SystemExit:
        return 0
    except (ConfigFileError, ValueError, OSError) as error:
        for line in _explain(error, flags, config_type, name):
            sys.stderr.write(f"{name}: {' '.join(line.split())}\n")
        return 2
    print_text(text, errors)
    return status


def _explain(
    error: Exception, flags: list[str], config_type: type[BaseConfig], name: str
) -> list[str]:
    cause = error.__cause__
    if isinstance(error, ConfigFileError) and isinstance(cause, ValidationError):
        return explain_settings(cause, config_type, f"{name} -h")
    stray = explain_stray(flags, config_type) if isinstance(error, ConfigFileError) else None
    return [stray or str(error)]
