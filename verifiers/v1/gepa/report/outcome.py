"""The outcome of a run: `best_system_prompt.txt`, `result.json`, the last lines of the log.

docs/outputs.md describes every key of `result.json`, docs/result.schema.json its form.
"""

import hashlib
import json
import logging
import shlex
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split
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
from verifiers.v1.gepa.teacher.quality import Flag
from verifiers.v1.utils.texts import write_text

logger = logging.getLogger(__name__)

MOST_DROPPED = 0.1
"""Share of the val tasks that may be missing in a run that counts in an aggregate."""

TESTED_BEFORE = "the test tasks were run before, with another deployed prompt"
"""The reason why a run does not count that went on after a look at test."""

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Scores are in the taskset's own unit."""

    status: Status
    finish_reason: str
    """Why the search ended: `budget` or another stop condition, the signal's name, or `fault`."""
    message: str
    """The same for a person, with the cause of a fault."""
    best_system_prompt: str
    """The deployed prompt; while that is not decided, the best of the search so far."""
    best_candidate: int
    """Its index in `candidates`; 0 is the seed prompt."""
    candidates: list[str]
    """The seed prompt and the accepted ones, in the order of their acceptance."""
    val_means: list[float]
    """The search's val mean of each candidate: what it was picked by, too good to report. Empty
    where the seed prompt's val pass did not end."""
    parents: list[int | None]
    """Index of each candidate's parent, None for the seed prompt."""
    prompt_flags: list[list[Flag]]
    """What there is to look at in each candidate."""
    evaluation: Evaluation
    """The phases after the search."""
    unvalidated: list[str]
    """Prompts that won their minibatch when the budget no longer paid for their val pass."""
    rollouts: dict[str, Any]
    """`budget`, `charged` (measured in the search), `attempted`, `failed`, `replayed` (measured by
    an earlier process of the run), `reused` (by other runs, or once more),
    `uncharged` (measured, by phase)."""
    proposals: dict[str, int]
    """`tried`, and of those `accepted`, `rejected`, `duplicate`, `unusable`, `failed`; `evaluated`,
    and of those `effective`."""
    tokens: dict[str, dict[str, int]]
    """Reported `input` and `output` tokens by role: student, teacher, judges."""
    cost: dict[str, Any]
    """What they cost: `usd`, `reason` where that is unknown, and the same by role, in `roles`."""
    endpoints: list[dict[str, Any]]
    """`url`, `attempts` and `failed` of each of the student's replicas, of this process."""
    dropped: list[int] = field(default_factory=list)
    """Indices of the val tasks that could not be measured with the seed prompt."""
    warnings: list[str] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    """The object that `result.json` holds."""
    run_dir: Path | None = None
    eval_tasks: list[int] = field(default_factory=list)
    """Indices of the test tasks, of the val tasks where there are none."""

    @property
    def partial(self) -> bool:
        """Whether the run was cut short, so that the prompt is the best so far."""
        return self.status != "finished"

    @property
    def seed_val_mean(self) -> float | None:
        return self.val_means[0] if self.val_means else None

    @property
    def best_val_mean(self) -> float | None:
        return max(self.val_means, default=None)

    @property
    def improved(self) -> bool:
        """Whether the deployed prompt is better on test than chance explains."""
        comparison = self.evaluation.comparison
        return comparison is not None and comparison.improved


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
            for index, flags in enumerate(outcome.prompt_flags)
            for flag in flags
        ],
        "validated_means": {str(index): mean for index, mean in evaluation.validated.items()},
        "test": [
            {"idx": t.idx, "hash": t.hash, "baseline": t.baseline, "deployed": t.deployed}
            for t in evaluation.tasks
        ],
        "num_test": len(split.test),
        "unvalidated": outcome.unvalidated,
        "dropped": outcome.dropped,
        "lost": evaluation.lost,
        "rollouts": outcome.rollouts,
        "proposals": outcome.proposals,
        "tokens": outcome.tokens,
        "cost": outcome.cost,
        "endpoints": outcome.endpoints,
        "warnings": outcome.warnings,
        "artifacts": _artifacts(outcome.run_dir),
        "commands": {
            "vf_eval": eval_command(outcome.run_dir),
            "resume": resume_command(config) if outcome.run_dir else None,
        },
        "versions": {name: version(name) for name in PACKAGES},
    }
    return {**result, "hints": hints(result)}


def write_outcome(outcome: Outcome, config: GEPAConfig) -> None:
    """Write the prompt and the result into the run directory. Raises `OSError`."""
    if outcome.run_dir is None:
        return
    write_text(outcome.run_dir / PROMPT_FILE, outcome.best_system_prompt)
    write_json(outcome.run_dir / EVAL_FILE, eval_config(config, outcome))
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
    names = ("rollouts", "tokens", "cost", "warnings", "val_means")
    known = {name: result[name] for name in names if name in result}
    return replace(outcome, result=result, **known)


def log_outcome(outcome: Outcome, config: GEPAConfig) -> None:
    """Say how the run ended, what it found and where, and how to go on."""
    for warning in outcome.warnings:
        logger.warning("%s", warning)
    if outcome.seed_val_mean is not None and outcome.best_val_mean is not None:
        logger.info(
            "search: val mean %.4f with the seed prompt, %.4f with the best of %d candidates",
            outcome.seed_val_mean,
            outcome.best_val_mean,
            len(outcome.val_means),
        )
    if headline := headline_of(outcome):
        logger.info("%s", headline)
    for hint in outcome.result["hints"]:
        logger.info("hint (%s): %s", hint["code"], hint["text"])
    logger.info("%s", cost_line(outcome.tokens, outcome.cost))
    if outcome.run_dir is not None:
        mark = " (partial: the best so far)" if outcome.partial else ""
        logger.info("prompt: %s%s", outcome.run_dir / PROMPT_FILE, mark)
        if report := outcome.result["artifacts"].get("report"):
            logger.info("report: %s", report)
        evaluation = outcome.evaluation
        complete = evaluation.comparison is not None or evaluation.test_skipped is not None
        if outcome.partial:
            logger.info("go on with: %s", resume_command(config))
        elif not complete:
            logger.info("go on with: %s --phase all", resume_command(config))
        else:
            logger.info("evaluate it with: %s", eval_command(outcome.run_dir))
    rollouts = outcome.rollouts
    summary = f"{rollouts['charged']} of {rollouts['budget']} rollouts"
    log = logger.error if outcome.status == "failed" else logger.info
    log("%s (%s): %s", outcome.status, summary, outcome.message)


def cost_line(tokens: dict[str, dict[str, int]], cost: dict[str, Any]) -> str:
    """Tokens and money by role, in one line."""
    parts = [
        f"{role} {used['input']} + {used['output']} ({usd_text(cost['roles'][role]['usd'])})"
        for role, used in tokens.items()
    ]
    total = usd_text(cost["usd"]) + (f" ({cost['reason']})" if cost["reason"] else "")
    return f"tokens in + out: {', '.join(parts) or 'none'}; cost: {total}"


def usd_text(usd: float | None) -> str:
    """An amount for a person; an unknown one says so."""
    return "unknown" if usd is None else f"${usd:.4f}"


def headline_of(outcome: Outcome) -> str | None:
    """The result in one sentence, None while there is none."""
    evaluation, comparison = outcome.evaluation, outcome.evaluation.comparison
    if evaluation.fallback_reason == "no_candidate":
        return "test: no proposal was accepted, the seed prompt stays"
    if evaluation.fallback_reason:
        return "test: no prompt was better than the seed prompt when run afresh, it stays"
    if comparison is None:
        return f"test: none: {evaluation.test_skipped}" if evaluation.test_skipped else None
    means = f"{comparison.baseline_mean:.4f} -> {comparison.deployed_mean:.4f}"
    delta = f"{100 * comparison.delta:+.1f} points"
    if comparison.ci95 is None:
        return f"test: {means}, {delta}; no interval: {comparison.reason}"
    low, high = (100 * end for end in comparison.ci95)
    verdict = "not more than chance explains"
    if comparison.improved:
        verdict = "improved"
    elif comparison.worse:
        verdict = "worse, keep the seed prompt"
    return f"test: {means}, {delta} (95 % interval {low:+.1f} to {high:+.1f}): {verdict}"


def eval_config(config: GEPAConfig, outcome: Outcome) -> dict[str, Any]:
    """The config of an eval of the deployed prompt: the same env, model, endpoint and sampling, on
    the test tasks (on val where there are none)."""
    assert outcome.run_dir is not None
    settings = config.model_dump(mode="json")
    settings["sampling"] = config.sampling.unnamed().model_dump(mode="json")
    env = {name: settings[name] for name in settings if name not in OWN_FIELDS}
    env["taskset"]["system_prompt"] = str(outcome.run_dir.resolve() / PROMPT_FILE)
    shared = ("model", "client", "sampling", "max_concurrent", "output_dir")
    select = {"include": {"idx": outcome.eval_tasks}}
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
