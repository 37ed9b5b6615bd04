"""The `gepa-report` command: a run directory as one page for people.

The exit status is 0 if the page was written, 2 for an error (one line says what).
"""

import sys
from pathlib import Path

from pydantic_config import BaseConfig, cli
from pydantic_config.cli import ConfigFileError

from verifiers.v1.gepa.report_page import write_report
from verifiers.v1.utils.texts import print_text

USAGE = """\
usage: gepa-report RUN_DIR [--output FILE]

Writes report.html into a run directory, or FILE, from what the directory holds: also of a run that
was killed or is still going.
"""


class ReportConfig(BaseConfig):
    """What to show, and where."""

    run_dir: Path
    """The run directory."""
    output: Path | None = None
    """The file to write; `report.html` in the run directory if not given."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        sys.stderr.write(USAGE)
        return 2
    if not args[0].startswith("-"):
        args = ["--run-dir", *args]
    try:
        if "-h" in args or "--help" in args:
            sys.stdout.write(USAGE + "\n")
        config = cli(ReportConfig, args=args)
        path = write_report(config.run_dir, config.output)
    except SystemExit:
        return 0
    except (ConfigFileError, ValueError, OSError) as error:
        sys.stderr.write(f"gepa-report: {' '.join(str(error).split())}\n")
        return 2
    print_text(f"{path}\n", "surrogateescape")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
