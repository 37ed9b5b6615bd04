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

SOURCES = ("verifiers", "verifiers_gepa", "environments")
MOST_LINES = 400
MOST_TOP_FILES = 10
MOST_ATTRIBUTES = 11

ROWS = {
    "record/history.py Proposal": "a line of `proposals.jsonl`, whose keys are on one level",
    "report/data.py Result": "the object of `result.json`, whose keys are on one level",
}
"""The classes that may have more attributes, each with the reason: they name the keys of a file as
the file has them."""


def allowed(place: str) -> set[str]:
    found = {place}
    for below in BELOW[place]:
        found |= allowed(below)
    return found


@dataclass(frozen=True)
class Import:
    line: int
    module: str


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, also those inside of functions."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield Import(node.lineno, node.module)
            for alias in node.names:
                yield Import(node.lineno, f"{node.module}.{alias.name}")


def place_of(module: str, home: Path) -> str | None:
    """The wing or top file of ours that a module belongs to."""
    if not module.startswith(f"{PACKAGE}."):
        return None
    name = module.removeprefix(f"{PACKAGE}.").split(".")[0]
    return name if (home / name).is_dir() or (home / f"{name}.py").exists() else None


def upward(home: Path) -> list[str]:
    """Every import in the package at `home` that goes up, as file, line and module."""
    found = set()
    for file in home.rglob("*.py"):
        path = file.relative_to(home)
        place = path.parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        for one in imports(file):
            target = place_of(one.module, home)
            if target is not None and target not in allowed(place):
                found.add(f"{path}:{one.line} imports {one.module}")
    return sorted(found)


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes of a class's objects that it names itself: inherited ones don't count."""
    found = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        # These two are of the class, and an argument.
        if not ast.unparse(item.annotation).startswith(("ClassVar", "InitVar"))
    }
    found |= {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and ast.unparse(item.value) == "self"
    }
    return found


def large_classes(file: Path) -> dict[str, int]:
    """The classes of a file with too many attributes, and how many."""
    classes = (
        node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.ClassDef)
    )
    counts = {node.name: len(attributes(node)) for node in classes}
    return {name: count for name, count in counts.items() if count > MOST_ATTRIBUTES}


def wings() -> list[Path]:
    return sorted(HOME / name for name in BELOW if not (HOME / f"{name}.py").exists())


def sources() -> list[Path]:
    return [file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*.py"))]


def test_imports_go_down_only() -> None:
    assert upward(HOME) == []


def test_an_import_that_goes_up_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.py").touch()
    (tmp_path / "record").mkdir()
    (tmp_path / "report").mkdir()
    (tmp_path / "report/page.py").write_text(f"import {PACKAGE}.record.files, {PACKAGE}.config\n")
    text = f"import json\n\ndef read() -> None:\n    from {PACKAGE}.report import page\n"
    (tmp_path / "record/files.py").write_text(text)
    assert upward(tmp_path) == [
        f"record/files.py:4 imports {PACKAGE}.report",
        f"record/files.py:4 imports {PACKAGE}.report.page",
    ]


def test_everything_has_a_place() -> None:
    top = {path.stem for path in HOME.glob("*.py")} - {"__init__"}
    folders = {path.name for path in HOME.iterdir() if any(path.glob("*.py"))}
    assert top | folders == set(BELOW)
    assert len(top) < MOST_TOP_FILES


def test_a_wing_says_what_it_is_for_and_holds_no_code_of_its_own() -> None:
    for wing in wings():
        tree = ast.parse((wing / "__init__.py").read_bytes())
        assert ast.get_docstring(tree), wing
        assert len(tree.body) == 1, wing


def test_no_file_is_too_long() -> None:
    lines = {file: len(file.read_bytes().splitlines()) for file in sources()}
    assert lines
    assert {str(file): n for file, n in lines.items() if n > MOST_LINES} == {}


def test_no_class_is_too_large() -> None:
    large = {
        f"{file.relative_to(HOME) if file.is_relative_to(HOME) else file} {name}"
        for file in sources()
        for name in large_classes(file)
    }
    assert large == set(ROWS)


def test_the_attributes_of_a_class_are_counted(tmp_path: Path) -> None:
    own = "".join(f"    field{number}: int\n" for number in range(6))
    text = f"class Small:\n{own}    kind: ClassVar[str] = ''\n    given: InitVar[int]\n\n"
    text += f"class Large(Small):\n{own}    def __init__(self) -> None:\n"
    text += "".join(f"        self.made{number} = self.field0 = 0\n" for number in range(6))
    (tmp_path / "some.py").write_text(text)
    assert large_classes(tmp_path / "some.py") == {"Large": 12}
