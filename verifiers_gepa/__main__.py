"""The `gepa` command, also `python -m verifiers_gepa`.

It exists so that the mount comes first: importing `verifiers.v1.cli.gepa` without it is the host's
command. `--version` is answered here, without the seconds that importing `verifiers.v1` takes.
"""

import sys

from verifiers_gepa import __version__


def main() -> int:
    """Run the command with `sys.argv`; returns its exit status. Raises SystemExit for errors."""
    if sys.argv[1:] == ["--version"]:
        print(f"verifiers-gepa {__version__}")
        return 0
    try:
        from verifiers.v1.cli.gepa import main as gepa

        return gepa()
    except KeyboardInterrupt:  # while the imports took their seconds
        return 130


def aggregate() -> int:
    """The `gepa-aggregate` command."""
    from verifiers.v1.cli.gepa_aggregate import main as gepa_aggregate

    return gepa_aggregate()


def compare() -> int:
    """The `gepa-compare` command."""
    from verifiers.v1.cli.gepa_compare import main as gepa_compare

    return gepa_compare()


def report() -> int:
    """The `gepa-report` command."""
    from verifiers.v1.cli.gepa_report import main as gepa_report

    return gepa_report()


if __name__ == "__main__":
    sys.exit(main())
