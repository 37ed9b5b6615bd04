"""The `gepa` command, also `python -m verifiers_gepa`, and the commands beside it.

They exist so that the mount comes first: importing `verifiers.v1.cli.gepa` without it is the host's
command. `--version` is answered here, without the seconds that importing `verifiers.v1` takes.
"""

import sys
from importlib import import_module

from verifiers_gepa import __version__


def main() -> int:
    """Run the command with `sys.argv`; returns its exit status. Raises SystemExit for errors."""
    if sys.argv[1:] == ["--version"]:
        print(f"verifiers-gepa {__version__}")
        return 0
    return _run("gepa")


def aggregate() -> int:
    """The `gepa-aggregate` command."""
    return _run("gepa_aggregate")


def compare() -> int:
    """The `gepa-compare` command."""
    return _run("gepa_compare")


def report() -> int:
    """The `gepa-report` command."""
    return _run("gepa_report")


def _run(command: str) -> int:
    try:
        status: int = import_module(f"verifiers.v1.cli.{command}").main()
    except KeyboardInterrupt:  # also while the imports took their seconds
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
