"""`run_gepa` from Python: scripts, notebooks, failures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import Reply, scripted
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.runner import GEPAError, run_gepa
from verifiers_gepa import GEPAConfig
from verifiers_gepa.endpoint import Endpoint


def test_a_failed_run_raises_from_python_with_what_is_known(tmp_path: Path) -> None:
    with scripted(teacher=lambda _: Reply.error(403, "no")) as endpoint:
        config = python_config(endpoint, tmp_path)
        with pytest.raises(GEPAError, match="403") as caught:
            run_gepa(load_env(config), config)
    assert caught.value.outcome.best_system_prompt == "Answer."
    assert caught.value.outcome.seed_val_mean == 0.0


def python_config(endpoint: Endpoint, folder: Path, **settings: Any) -> GEPAConfig:
    return GEPAConfig(
        taskset={"id": "board-v1"},
        model="student",
        client={"base_url": endpoint.url},
        reflection_client={"base_url": endpoint.teacher_url},
        local=True,
        num_train=4,
        num_val=4,
        num_test=0,
        phase="optimize",
        reflection_minibatch_size=2,
        max_total_rollouts=12,
        output_dir=folder,
        **settings,
    )


def test_from_a_script_and_from_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook() -> Any:
        config = python_config(endpoint, tmp_path)
        return run_gepa(load_env(config), config)

    with scripted() as endpoint:
        config = python_config(endpoint, tmp_path)
        plain = run_gepa(load_env(config), config)
    with scripted() as endpoint:
        inside = asyncio.run(notebook())
    for outcome in (plain, inside):
        assert outcome.best_system_prompt == "Answer. GOOD v1"
        assert outcome.best_val_mean == 1.0
        assert outcome.run_dir is not None
        saved = json.loads((outcome.run_dir / "result.json").read_bytes())
        assert saved["rollouts"]["charged"] == 12
        assert saved == outcome.result
        names = ["status", "finish_reason", "message", "partial", "improved", "warnings"]
        names += ["val_means", "parents", "seed_val_mean", "best_val_mean"]
        names += ["rollouts", "proposals", "tokens", "cost"]
        assert {name: getattr(outcome, name) for name in names} == {k: saved[k] for k in names}
        assert outcome.candidates[outcome.best_candidate] == outcome.best_system_prompt
        assert (outcome.best_candidate, outcome.evaluation.deployed) == (1, None)


def test_without_saving_nothing_is_written(tmp_path: Path) -> None:
    with scripted() as endpoint:
        config = python_config(endpoint, tmp_path, save_results=False)
        outcome = run_gepa(load_env(config), config)
    assert outcome.best_system_prompt == "Answer. GOOD v1"
    assert outcome.run_dir is None
    assert list(tmp_path.iterdir()) == []
