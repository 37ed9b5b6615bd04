"""What is there for contributors: the page, the hooks, the workflow, the issue forms."""

import ast
import os
import re
import shlex
import tomllib
from typing import Any

import pytest
import yaml

from tests.docs.test_commands import ROOT, blocks, commands
from tests.test_layout import HOME

PAGE = ROOT / "CONTRIBUTING.md"
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_every_file_that_the_page_names_is_there() -> None:
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"`([^`\n]+)`", text)
    files = [word for word in words if re.fullmatch(r"[\w./-]*\w\.(py|md|toml)", word)]
    assert len(files) > 10
    assert [file for file in files if not ((HOME / file).exists() or (ROOT / file).exists())] == []


def test_the_tests_that_the_page_runs_are_there() -> None:
    run = [
        shlex.split(command)[3:]
        for language, block in blocks(PAGE)
        if language == "sh"
        for command in commands(block)
        if command.startswith("python -m pytest")
    ]
    assert run
    for (target,) in run:
        file, _, name = target.partition("::")
        tree = ast.parse((ROOT / file).read_bytes())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not name or name in names


def test_the_hooks_run_the_checks_of_make_test_in_the_projects_environment() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    ran = []
    for hook in hooks:
        assert hook["language"] == "system"
        assert hook["pass_filenames"] is False
        shell, flag, script = shlex.split(hook["entry"])
        assert (shell, flag) == ("sh", "-c")
        ran.append(script.removeprefix('PATH=".venv/bin:$PATH" exec '))
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\ntest:")[1].split("\n\n")[0]
    checks = re.findall(r"^\t\$\(BIN\)/(.+)$", recipe, re.MULTILINE)
    assert ran == [check.replace("format --check", "format") for check in checks]


def test_the_workflow_runs_what_ci_runs_on_the_pythons_that_the_page_names() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    setup = next(step for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    (script,) = (step["run"] for step in job["steps"] if "run" in step)
    assert os.access(ROOT / script, os.X_OK)
    pythons = job["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.13"]
    assert f"[.ci/run](.ci/run) on Python {' and '.join(pythons)}" in PAGE.read_text("utf-8")
    assert "PYTHON ?= python3\n" in (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_an_issue_form_is_one(form: Any) -> None:
    known = read(form)
    assert known.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in known["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[\w-]+", field["id"]) for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    for target in re.findall(r"\]\(\.\./blob/main/([^)]+)\)", form.read_text("utf-8")):
        assert (ROOT / target).exists(), target


def test_a_bug_report_asks_for_what_tells_most() -> None:
    labels = {
        field["attributes"]["label"]
        for field in read(".github/ISSUE_TEMPLATE/bug_report.yml")["body"]
        if field["type"] != "markdown"
    }
    assert {"The command", "The last line of stderr", "result.json", "Versions"} <= labels
    assert read(".github/ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": True}


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    first, *_ = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first == project["version"]
