"""Trackers follow a run by rollouts, and can't change it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import SAME, resumed, run, scripted

STUB = """
calls = []
run = None

class Run:
    summary = {}

def counted(name):
    def call(*args, **kwargs):
        global run
        calls.append((name, args, kwargs))
        if FAILS and len(calls) % 3 == 0:
            raise RuntimeError(f"call {len(calls)} fails")
        if name == "init":
            run = Run()
    return call

class Config:
    update = staticmethod(counted("config"))

config = Config()
login, init, log, finish = map(counted, ("login", "init", "log", "finish"))
define_metric = counted("define_metric")
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A `wandb` that notes its calls, and where asked for raises in every third."""
    folder = tmp_path / "stub"
    folder.mkdir()
    (folder / "wandb.py").write_text(f"FAILS = {request.param}\n{STUB}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    return folder


def wandb() -> ModuleType:
    return sys.modules["wandb"]


LONG = ["--max-total-rollouts", "24"]
"""An accepted proposal and three that are not."""


@pytest.mark.parametrize("stub", [False], indirect=True)
def test_the_series_of_a_run_are_by_rollouts(tmp_path: Path, stub: Path) -> None:
    prices = ["--price-in", "1", "--price-out", "1"]
    prices += ["--reflection-price-in", "1", "--reflection-price-out", "1"]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--wandb", *LONG, *prices)
        points = [args[0] for name, args, _ in wandb().calls if name == "log"]
        wandb().calls.clear()
        again = resumed(endpoint, done, "--wandb", *LONG, *prices)
        replayed = [args[0] for name, args, _ in wandb().calls if name == "log"]
    assert [point["rollouts"] for point in points] == [12, 16, 20, 24, 24]
    assert [point.get("val_mean") for point in points] == [1.0, None, None, None, None]
    assert [point["best_val_mean"] for point in points] == [1.0] * 5
    assert [point.get("minibatch_before") for point in points] == [0.0, 1.0, 1.0, 1.0, None]
    assert [point.get("minibatch_after") for point in points] == [1.0, 1.0, 1.0, 1.0, None]
    result = again.result
    assert points[-1]["cost_usd"] == result["cost"]["usd"]
    for role, tokens in result["tokens"].items():
        assert points[-1][f"tokens/{role}/input"] == tokens["input"]
    assert replayed == points
    assert wandb().run.summary == {"status": "finished"}  # the search alone deploys nothing
    (settings,) = [kwargs["settings"] for name, _, kwargs in wandb().calls if name == "init"]
    assert settings == {
        "console": "off",
        "disable_code": True,
        "disable_git": True,
        "x_disable_machine_info": True,
        "x_disable_meta": True,
    }


@pytest.mark.parametrize("stub", [True], indirect=True)
def test_a_tracker_that_fails_is_one_warning(
    tmp_path: Path, stub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        plain = run(endpoint, tmp_path, *LONG)
    assert "a tracker" not in capsys.readouterr().err
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--wandb", *LONG)
    err = capsys.readouterr().err
    assert err.count("a tracker failed") == err.count(" fails)") == 1
    assert sum(name == "log" for name, *_ in wandb().calls) == 5
    for name in SAME:
        assert (done.folder / name).read_bytes() == (plain.folder / name).read_bytes()
    places = ("endpoints", "artifacts", "commands")
    results = [
        {key: value for key, value in one.result.items() if key not in places}
        for one in (plain, done)
    ]
    assert results[0] == results[1]


def test_a_tracker_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow").mkdir()  # a folder is no package
    monkeypatch.syspath_prepend(str(tmp_path))
    with scripted() as endpoint:
        assert run(endpoint, tmp_path, "--mlflow", "--no-save-results", *LONG).status == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == "gepa: --mlflow writes below the run directory: save results"
        assert run(endpoint, tmp_path, "--mlflow", *LONG).status == 2
        assert endpoint.requests == []
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "gepa: --mlflow: mlflow is not installed: pip install 'verifiers-gepa[mlflow]'"
