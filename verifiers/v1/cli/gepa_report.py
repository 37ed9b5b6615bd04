"""The `gepa-report` command: a run directory as one page for people.

The exit status is 0 if the page was written, 2 for an error (one line says what).
"""

import sys
from pathlib import Path

from pydantic_config import BaseConfig

from verifiers.v1.gepa.report.page import write_report
from verifiers.v1.utils.command import run_command

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
    args = sys.argv[1:] if argv is None else argv
    return run_command("gepa-report", USAGE, ReportConfig, "run-dir", _report, args)


def _report(config: ReportConfig) -> tuple[str, int]:
    return f"{write_report(config.run_dir, config.output)}\n", 0


if __name__ == "__main__":
    raise SystemExit(main())
