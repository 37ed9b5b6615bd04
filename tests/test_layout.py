"""The package's layout: imports between its wings go down only, and no file or class outgrows its
place."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

HOME = ROOT / "verifiers/v1/gepa"
PACKAGE = "verifiers.v1.gepa"

BELOW: dict[str, tuple[str, ...]] = {
    "settings": (),
    "config": ("settings",),
    "dataset": ("config",),
    "faults": ("config",),
    "spend": ("config",),
    "command": ("config",),
    "record": ("dataset", "faults", "spend"),
    "rollouts": ("record",),
    "teacher": ("record",),
    "prepare": ("teacher",),
    "adapter": ("rollouts", "teacher"),
    "reflection": ("adapter",),
    "search": ("reflection",),
    "evaluation": ("rollouts",),
    "report": ("evaluation", "search", "prepare"),
    "run": ("report",),
    "watch": ("run",),
    "runner": ("watch",),
    "across": ("report",),
}
"""Each wing and top file -> those that it may import, besides what these may."""


def allowed(place: str) -> set[str]:
    found = {place}
    for below in BELOW[place]:
        found |= allowed(below)
    return found


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, also those inside of functions."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield Import(file, node.lineno, node.module)
            for alias in node.names:
                yield Import(file, node.lineno, f"{node.module}.{alias.name}")


def place_of(module: str) -> str | None:
    """The wing or top file of ours that a module belongs to."""
    if not module.startswith(f"{PACKAGE}."):
        return None
    name = module.removeprefix(f"{PACKAGE}.").split(".")[0]
    return name if (HOME / name).is_dir() or (HOME / f"{name}.py").exists() else None


def upward() -> list[str]:
    found = []
    for file in sorted(HOME.rglob("*.py")):
        place = file.relative_to(HOME).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        for one in imports(file):
            target = place_of(one.module)
            if target is not None and target not in allowed(place):
                found.append(str(one))
    return sorted(set(found))


def test_imports_go_down_only() -> None:
    assert upward() == []
