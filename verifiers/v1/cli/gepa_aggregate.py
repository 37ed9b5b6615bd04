"""The `gepa-aggregate` command: several runs as one table, over seeds.

Tab-separated on stdout, a table on a terminal. The exit status is 0 if every cell is complete, 1 if
one is not or a file was skipped, 2 for an error.
"""

import sys
from pathlib import Path

from pydantic import Field
from pydantic_config import BaseConfig
from rich.console import Console
from rich.table import Table

from verifiers.v1.gepa.across.aggregate import (
    COLUMNS,
    Family,
    aggregate,
    find_results,
    summary,
    table_rows,
)
from verifiers.v1.gepa.prepare.rundir import write_json
from verifiers.v1.utils.command import run_command

USAGE = """\
usage: gepa-aggregate PATH... [--seeds 0 1 2] [--family task|method|none] [--out summary.json]

Finds every result.json at or below each PATH and tabulates them: a row per cell (taskset, model,
harness, and all other settings but the seed) and one per seed below it.
"""


class AggregateConfig(BaseConfig):
    """What to tabulate, and how."""

    paths: list[Path] = Field(default_factory=list)
    """Run directories, or folders of them."""
    seeds: list[int] = Field(default_factory=list)
    """Seeds that every cell should have; one that is absent makes the cell incomplete."""
    bootstrap: int = Field(10_000, ge=100)
    """Resamples of the interval."""
    family: Family = "none"
    """Cells whose p-values are adjusted together (Holm): those of one taskset, those of one model
    and harness (`method`), or none."""
    include_nonconformant: bool = False
    """Take in runs that deviate from the full protocol."""
    out: Path | None = None
    """Write everything as JSON to this file too."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = sys.argv[1:] if argv is None else argv
    # `0,1,2` is as natural as `0 1 2`.
    args = [part for arg in args for part in (arg.split(",") if _is_list(arg) else [arg])]
    return run_command("gepa-aggregate", USAGE, AggregateConfig, "paths", _aggregate, args)


def _aggregate(config: AggregateConfig) -> tuple[str, int]:
    runs, skipped = find_results(config.paths)
    for reason in skipped:
        sys.stderr.write(f"skipped {reason}\n")
    if not runs:
        raise ValueError("no result.json was found: name run directories or folders of them")
    cells = aggregate(
        runs, config.seeds, config.bootstrap, config.family, config.include_nonconformant
    )
    if config.out is not None:
        write_json(config.out, summary(cells, skipped))
    incomplete = skipped or any(cell.incomplete for cell in cells)
    return _table(table_rows(cells)), 1 if incomplete else 0


def _is_list(arg: str) -> bool:
    parts = arg.split(",")
    return len(parts) > 1 and all(part.strip().isdigit() for part in parts)


def _table(rows: list[list[str]]) -> str:
    """The table as the output takes it."""
    if not sys.stdout.isatty():
        return "".join("\t".join(row) + "\n" for row in [list(COLUMNS), *rows])
    table = Table(*COLUMNS)
    for row in rows:
        if row[0] and table.row_count:
            table.add_section()
        table.add_row(*row)
    console = Console()
    with console.capture() as printed:
        console.print(table)
    return printed.get()


if __name__ == "__main__":
    raise SystemExit(main())
