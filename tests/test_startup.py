"""What help and a dry run import: each module that they don't need is time that a person waits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

HEAVY = {"datasets", "gepa", "genai_prices", "matplotlib", "pandas", "pyarrow", "scipy"}

PROGRAM = """
import json, os, sys
sys.argv[0] = "gepa"
from verifiers_gepa.__main__ import main
status = main()
os.write(2, json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]).encode())
"""


@pytest.mark.parametrize("words", [["-h"], ["support-intent-v1", "--dry-run", "-m", "student"]])
def test_help_and_a_dry_run_import_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    where = [] if words == ["-h"] else ["-o", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, *where],
        cwd=ROOT,  # `-c` looks there first
        capture_output=True,
        check=True,
    )
    status, imported = json.loads(ended.stderr.splitlines()[-1])
    assert status == 0
    assert "verifiers" in imported
    assert not HEAVY & set(imported)
