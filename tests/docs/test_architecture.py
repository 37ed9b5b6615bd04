"""The page on the architecture against the code: the wings, what they may import, what is named."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_commands import DOCS, ROOT, section
from tests.test_layout import BELOW, HOME

PAGE = DOCS / "architecture.md"
FOLDERS = (HOME, ROOT / "verifiers/v1", ROOT, ROOT / "tests")
"""Where the page's paths begin, the first that fits."""

FILE = re.compile(r"[\w./-]+\.(?:py|j2|toml|json|md)|[\w./-]+/|Makefile")
NAME = re.compile(r"[A-Za-z_]\w*")


def rows(title: str, number: int = 0) -> list[list[str]]:
    """The cells of a section's table, of the one with that number."""
    tables = re.findall(r"(?:^\|.*\n)+", section(PAGE, title), re.MULTILINE)
    lines = tables[number].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def found(path: str, *folders: Path) -> Path | None:
    """The file or folder that a path of the page means."""
    whole = [folder / path for folder in folders]
    return next((it for it in whole if it.is_dir() or (it.is_file() and path[-1] != "/")), None)


@cache
def defined(file: Path) -> frozenset[str]:
    """Every name that a file defines, also inside of classes and functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def missing(cell: str, where: Path | None, *folders: Path) -> list[str]:
    """The files of a cell that are not there, and the names that the file before them (at first
    `where`) does not define."""
    wrong = []
    for word in quoted(cell):
        if FILE.fullmatch(word):
            where = found(word, *folders)
            if where is None:
                wrong.append(word)
        elif (
            NAME.fullmatch(word)
            and where is not None
            and where.suffix == ".py"
            and word not in defined(where)
        ):
            wrong.append(f"{where.name}: {word}")
    return wrong


def test_every_wing_and_top_file_is_there_with_what_it_may_import() -> None:
    places = {path.name for path in HOME.glob("*.py") if path.stem != "__init__"}
    places |= {f"{path.parent.name}/" for path in HOME.glob("*/__init__.py")}
    listed = rows("Wings")
    assert sorted(quoted(cells[0])[0] for cells in listed) == sorted(places)
    known: set[str] = set()
    for place, _, _, below in listed:
        name = quoted(place)[0].removesuffix(".py").removesuffix("/")
        assert quoted(below) == [*BELOW[name]], name
        assert known >= {*BELOW[name]}, f"{name} stands above what it may import"
        known.add(name)


def test_what_one_begins_with_in_a_wing_is_there() -> None:
    for place, _, names, _ in rows("Wings"):
        path = HOME / quoted(place)[0]
        assert 1 <= len([word for word in quoted(names) if not FILE.fullmatch(word)]) <= 4
        assert missing(names, None if path.is_dir() else path, path) == [], place


def test_what_lies_around_the_package_is_there() -> None:
    for place, what in rows("Wings", 1):
        folder = ROOT / quoted(place)[0]
        assert folder.is_dir()
        assert missing(what, None, folder, folder / "direct_chat") == [], place
    commands = {path.name for path in (ROOT / "verifiers/v1/cli").glob("*.py")}
    assert {word for word in quoted(rows("Wings", 1)[0][1]) if "." in word} == commands


NEW = rows("Where a new thing goes")


@pytest.mark.parametrize("cells", NEW, ids=[cells[0] for cells in NEW])
def test_where_a_new_thing_goes_is_there(cells: list[str]) -> None:
    _, code, test, documentation = cells
    assert missing(code, None, *FOLDERS) == []
    assert missing(test, None, ROOT) == []
    assert any(word.startswith("tests/") for word in quoted(test))
    assert missing(documentation.replace("`finish_reason`", ""), None, ROOT) == []


def test_every_file_that_the_page_names_is_there() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")}
    for word in quoted(PAGE.read_text("utf-8")):
        if re.fullmatch(r"[\w./-]+\.py", word):
            assert any(f"/{name}".endswith(f"/{word}") for name in names), word


def test_the_diagram_names_places_that_are_there() -> None:
    (diagram,) = re.findall(r"^```mermaid\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    places = set(re.findall(r"\b(\w+(?:/|\.py))(?=[:, \"])", diagram))
    assert {place for place in places if not (HOME / place).exists()} == set()
    wings = {f"{path.parent.name}/" for path in HOME.glob("*/__init__.py")}
    assert wings <= places
