"""The `gepa-compare` command: two runs side by side, and the first step at which they part.

The exit status is 0 if both are the same search, 1 if not, 2 for an error (one line says what).
"""

import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.gepa.across.compare import Comparison, compare_runs
from verifiers.v1.gepa.across.recorded import read_steps
from verifiers.v1.utils.command import run_command
from verifiers.v1.utils.json_option import JsonOption
from verifiers.v1.utils.texts import shorten, visible

USAGE = """\
usage: gepa-compare RUN_A RUN_B [--json]

Lays two run directories side by side: settings that differ, the first step at which the searches
part, what each came to and took, and a diff of the deployed prompts.
"""

WIDTH = 40
"""Characters of a setting or figure that are shown."""


class CompareConfig(JsonOption):
    """What to compare, and how to show it."""

    runs: list[Path]
    """The two run directories."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = sys.argv[1:] if argv is None else argv
    return run_command(
        "gepa-compare", USAGE, CompareConfig, "runs", _compare, args, "backslashreplace"
    )


def _compare(config: CompareConfig) -> tuple[str, int]:
    if len(config.runs) != 2:
        raise ValueError("name two run directories, as in `gepa-compare RUN_A RUN_B`")
    first, second = map(read_steps, config.runs)
    comparison = compare_runs(first, second)
    lines = [json.dumps(comparison.as_json())] if config.json else _lines(comparison)
    return "\n".join([*lines, ""]), 0 if comparison.equal else 1


def _lines(comparison: Comparison) -> list[str]:
    """The comparison for a person, the verdict last."""
    lines = []
    for title, pairs in (("settings that differ", comparison.config), ("", comparison.figures)):
        rows = [(name, _shown(a), _shown(b)) for name, (a, b) in pairs.items()]
        if rows:
            lines += [*_table([(title, "A", "B"), *rows]), ""]
    if comparison.prompt_diff:
        lines += [visible(comparison.prompt_diff), ""]
    if comparison.first_difference is None:
        return [*lines, "equal: the same search, step by step"]
    return [*lines, f"different from {visible(str(comparison.first_difference))}"]


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
    return [f"{name:<{widths[0]}}  {a:<{widths[1]}}  {b}".rstrip() for name, a, b in rows]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(shorten(text, WIDTH).replace("\n", " "))


if __name__ == "__main__":
    raise SystemExit(main())
