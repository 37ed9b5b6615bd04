"""The outcome of a run as files: `best_system_prompt.txt`, `result.json`, `configs/eval.json`.

docs/outputs.md describes every key of `result.json`, docs/result.schema.json its form.
"""

import hashlib
import json
import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, task_idx
from verifiers.v1.gepa.evaluation import Evaluation
from verifiers.v1.gepa.prepare.identity import LIMIT_FIELDS, OWN_FIELDS, PACKAGES, run_identity
from verifiers.v1.gepa.prepare.rundir import resume_command, write_json
from verifiers.v1.gepa.record.files import (
    CANDIDATES_FILE,
    CONFIG_FILE,
    DECISIONS_FILE,
    EVAL_FILE,
    PROMPT_FILE,
    PROPOSALS_FILE,
    REFLECTIONS_FILE,
    REPORT_FILE,
    RESULT_FILE,
    RUN_LOG_FILE,
    SPLITS_FILE,
    TRACES_FILE,
    TREE_FILE,
)
from verifiers.v1.gepa.record.replay import RecordError, Replay
from verifiers.v1.gepa.report.hints import hints
from verifiers.v1.gepa.report.outcome import Outcome, Status
from verifiers.v1.utils.texts import write_text

MOST_DROPPED = 0.1
"""Share of the val tasks that may be missing in a run that counts in an aggregate."""

TESTED_BEFORE = "the test tasks were run before, with another deployed prompt"
"""The reason why a run does not count that went on after a look at test."""


def result_object(outcome: Outcome, config: GEPAConfig, split: Split) -> dict[str, Any]:
    """The object that `result.json` holds."""
    evaluation, comparison = outcome.evaluation, outcome.evaluation.comparison
    invalid = _invalid_reasons(outcome, config, split)
    result = {
        "status": outcome.status,
        "finish_reason": outcome.finish_reason,
        "message": outcome.message,
        "partial": outcome.partial,
        "cell": _cell(config, split, outcome.candidates[0]),
        "seed": config.seed,
        "teacher": config.teacher[0],
        "baseline_mean": comparison.baseline_mean if comparison else None,
        "deployed_mean": comparison.deployed_mean if comparison else None,
        "delta_pp": 100 * comparison.delta if comparison else _known_delta(evaluation),
        "ci95": [100 * end for end in comparison.ci95] if comparison and comparison.ci95 else None,
        "p_value": comparison.p_value if comparison else None,
        "statistics_reason": comparison.reason if comparison else evaluation.test_skipped,
        "improved": outcome.improved,
        "valid_for_aggregation": not invalid,
        "invalid_reasons": invalid,
        "deployed_candidate": evaluation.deployed,
        "fallback_reason": evaluation.fallback_reason,
        "seed_val_mean": outcome.seed_val_mean,
        "best_val_mean": outcome.best_val_mean,
        "val_means": outcome.val_means,
        "parents": outcome.parents,
        "candidate_chars": [len(text) for text in outcome.candidates],
        "prompt_flags": [
            {"candidate": index, **flag}
            for index, flags in enumerate(outcome.pool.flags)
            for flag in flags
        ],
        "validated_means": {str(index): mean for index, mean in evaluation.validated.items()},
        "test": [
            {"idx": t.idx, "hash": t.hash, "baseline": t.baseline, "deployed": t.deployed}
            for t in evaluation.tasks
        ],
        "num_test": len(split.test),
        "unvalidated": outcome.pool.unvalidated,
        "dropped": outcome.dropped,
        "lost": evaluation.lost,
        "rollouts": outcome.rollouts,
        "proposals": outcome.proposals,
        "tokens": outcome.tokens,
        "cost": outcome.cost,
        "endpoints": outcome.spent.endpoints,
        "warnings": outcome.warnings,
        "artifacts": _artifacts(outcome.run_dir),
        "commands": {
            "vf_eval": eval_command(outcome.run_dir),
            "resume": resume_command(config) if outcome.run_dir else None,
        },
        "versions": {name: version(name) for name in PACKAGES},
    }
    return {**result, "hints": hints(result)}


def write_outcome(outcome: Outcome, config: GEPAConfig, split: Split) -> None:
    """Write the prompt and the result into the run directory. Raises `OSError`."""
    if outcome.run_dir is None:
        return
    write_text(outcome.run_dir / PROMPT_FILE, outcome.best_system_prompt)
    write_json(outcome.run_dir / EVAL_FILE, eval_config(outcome, config, split))
    write_json(outcome.run_dir / RESULT_FILE, outcome.result)


def mark_unfinished(run_dir: Path, replay: Replay) -> None:
    """Say in the result of a run that is gone on with that it is not finished, in case this process
    is killed, and take away the report, which says otherwise. Raises `RecordError` where the record
    holds less than the result has counted."""
    path = run_dir / RESULT_FILE
    if not path.exists():
        return
    try:
        counted = int(json.loads(path.read_bytes())["rollouts"]["charged"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is broken ({error!r}): delete it to go on") from error
    if counted > replay.charged:
        raise RecordError(
            f"{run_dir / TRACES_FILE} holds {replay.charged} of the {counted} rollouts that "
            f"{RESULT_FILE} counted: it was cut or deleted; put it back, or start another run"
        )
    amend_result(run_dir, "interrupted", "killed", "a process that went on with the run was killed")
    (run_dir / REPORT_FILE).unlink(missing_ok=True)


def amend_result(run_dir: Path, status: Status, reason: str, message: str) -> dict[str, Any] | None:
    """Change how a run ended in its result, and take out the report, which says otherwise; nothing
    else. The result as it is then, None where there is none. Raises `OSError`."""
    path = run_dir / RESULT_FILE
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_bytes())
    ending = {"status": status, "finish_reason": reason, "message": message}
    invalid = [] if status == "finished" else [f"the run did not finish ({reason})"]
    partial = {"partial": status != "finished", "valid_for_aggregation": not invalid}
    result |= {**ending, **partial, "invalid_reasons": invalid, "hints": []}
    result["artifacts"] = {k: v for k, v in result.get("artifacts", {}).items() if k != "report"}
    write_json(path, result)
    return result


def as_recorded(outcome: Outcome, result: dict[str, Any]) -> Outcome:
    """`outcome` with what `result`, the run's own, knows of more than it."""

    def known(*names: str) -> dict[str, Any]:
        return {name: result[name] for name in names if name in result}

    pool = replace(outcome.pool, **known("val_means"))
    spent = replace(outcome.spent, **known("rollouts", "tokens", "cost"))
    return replace(outcome, result=result, pool=pool, spent=spent, **known("warnings"))


def eval_config(outcome: Outcome, config: GEPAConfig, split: Split) -> dict[str, Any]:
    """The config of an eval of the deployed prompt: the same env, model, endpoint and sampling, on
    the test tasks (on val where there are none)."""
    assert outcome.run_dir is not None
    settings = config.model_dump(mode="json")
    settings["sampling"] = config.sampling.unnamed().model_dump(mode="json")
    env = {name: settings[name] for name in settings if name not in OWN_FIELDS}
    env["taskset"]["system_prompt"] = str(outcome.run_dir.resolve() / PROMPT_FILE)
    shared = ("model", "client", "sampling", "max_concurrent", "output_dir")
    tasks = split.test or split.val
    select = {"include": {"idx": [task_idx(task) for task in tasks]}}
    shown = {name: settings[name] for name in shared}
    return {"env": env, "select": select, "push": False, **shown}


def eval_command(run_dir: Path | None) -> str | None:
    """The `vf-eval` command line that runs the prompt, None where nothing was written."""
    return None if run_dir is None else shlex.join(["vf-eval", "@", str(run_dir / EVAL_FILE)])


def _cell(config: GEPAConfig, split: Split, prompt: str) -> dict[str, Any]:
    """What runs that differ in their seed alone have in common."""
    settings = run_identity(config, split, prompt)
    settings = {k: v for k, v in settings.items() if k != "seed" and not k.startswith("version.")}
    settings |= {name: getattr(config, name) for name in LIMIT_FIELDS}
    return {
        "taskset": config.taskset.id,
        "env": config.env_id,
        "model": config.student,
        "harness": "+".join(dict.fromkeys(h.id for h in config.agent_harnesses().values())),
        "sampling": _digest(config.sampling.model_dump(mode="json", exclude_none=True)),
        "settings": _digest(settings),
        "split": _digest(split.record()),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _known_delta(evaluation: Evaluation) -> float | None:
    """Without a comparison the difference is known only where the seed prompt stayed."""
    return 0.0 if evaluation.deployed == 0 else None


def _invalid_reasons(outcome: Outcome, config: GEPAConfig, split: Split) -> list[str]:
    """Where the run deviates from the full protocol."""
    reasons = []
    if outcome.status != "finished":
        reasons.append(f"the run did not finish ({outcome.finish_reason})")
    elif outcome.evaluation.deployed is None:
        reasons.append("the validate phase was not run")
    elif outcome.evaluation.comparison is None and outcome.evaluation.test_skipped is None:
        reasons.append("the test phase was not run")
    if not split.test:
        reasons.append("there are no test tasks (num_test is 0)")
    if outcome.evaluation.tested_before:
        reasons.append(TESTED_BEFORE)
    if config.allow_small_budget:
        reasons.append("the budget was allowed to be too small for one accepted proposal")
    missing = {
        "val": len(outcome.dropped),
        **{k: len(v) for k, v in outcome.evaluation.lost.items()},
    }
    sizes = {"val": len(split.val), "validate": len(split.val), "test": len(split.test)}
    for name, count in missing.items():
        if count > MOST_DROPPED * sizes[name]:
            reasons.append(f"{count} of {sizes[name]} tasks of {name} could not be measured")
    return reasons


def _artifacts(run_dir: Path | None) -> dict[str, str]:
    """The files of the run directory: those that every run has, and those that this one made."""
    if run_dir is None:
        return {}
    always = {
        "prompt": PROMPT_FILE,
        "config": CONFIG_FILE,
        "eval_config": EVAL_FILE,
        "splits": SPLITS_FILE,
    }
    names = {
        "traces": TRACES_FILE,
        "reflections": REFLECTIONS_FILE,
        "decisions": DECISIONS_FILE,
        "proposals": PROPOSALS_FILE,
        "candidates": CANDIDATES_FILE,
        "run_log": RUN_LOG_FILE,
        "candidate_tree": TREE_FILE,
    }
    made = {key: name for key, name in names.items() if (run_dir / name).exists()}
    return {key: str(run_dir / name) for key, name in {**always, **made}.items()}
