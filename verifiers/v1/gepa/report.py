"""The outcome of a run: `best_system_prompt.txt`, `result.json`, the last lines of the log."""

import logging
import shlex
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.rundir import CONFIG_FILE, SPLITS_FILE, resume_command, write_json
from verifiers.v1.utils.texts import write_text

logger = logging.getLogger(__name__)

PROMPT_FILE = "best_system_prompt.txt"
RESULT_FILE = "result.json"
EVAL_FILE = "configs/eval.json"

OWN_FIELDS = frozenset(GEPAConfig.model_fields) - frozenset(vf.EnvConfig.model_fields)
"""The fields of a run that are none of its env's."""

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Scores are means over the val tasks, None where the seed prompt's val pass did not end.
    """

    status: Status
    finish_reason: str
    """Why the search ended: `budget` or another stop condition, the signal's name, or `fault`."""
    message: str
    """The same for a person, with the cause of a fault."""
    best_system_prompt: str
    seed_val_mean: float | None
    best_val_mean: float | None
    best_candidate: int
    """Index of the best prompt in `candidates`; 0 is the seed prompt."""
    candidates: list[str]
    """The seed prompt and the accepted ones, in the order of their acceptance."""
    val_means: list[float]
    """Val mean of each candidate."""
    parents: list[int | None]
    """Index of each candidate's parent, None for the seed prompt."""
    unvalidated: list[str]
    """Prompts that won their minibatch when the budget no longer paid for their val pass."""
    rollouts: dict[str, int]
    """`budget`, `charged` (measured in the search), `attempted`, `failed`, and `replayed`: those
    of the charged that an earlier process of the run measured."""
    proposals: dict[str, int]
    """Of the teacher calls `asked`: `no_proposal`, `failed`, `accepted`, `rejected`."""
    tokens: dict[str, dict[str, int]]
    """Reported `input` and `output` tokens by role: student, teacher, judges."""
    dropped: list[int] = field(default_factory=list)
    """Indices of the val tasks that could not be measured with the seed prompt."""
    warnings: list[str] = field(default_factory=list)
    run_dir: Path | None = None

    @property
    def partial(self) -> bool:
        """Whether the search was cut short, so that the prompt is the best so far."""
        return self.status != "finished"


def result_json(outcome: Outcome, config: GEPAConfig) -> dict[str, Any]:
    """The object that `result.json` holds; docs/outputs.md describes it."""
    harnesses = {name: harness.id for name, harness in config.agent_harnesses().items()}
    return {
        "status": outcome.status,
        "finish_reason": outcome.finish_reason,
        "message": outcome.message,
        "partial": outcome.partial,
        "taskset": config.taskset.id,
        "env": config.env_id,
        "model": config.model,
        "harness": harnesses,
        "teacher": config.teacher[0],
        "seed": config.seed,
        "seed_val_mean": outcome.seed_val_mean,
        "best_val_mean": outcome.best_val_mean,
        "best_candidate": outcome.best_candidate,
        "val_means": outcome.val_means,
        "parents": outcome.parents,
        "unvalidated": outcome.unvalidated,
        "dropped": outcome.dropped,
        "rollouts": outcome.rollouts,
        "proposals": outcome.proposals,
        "tokens": outcome.tokens,
        "warnings": outcome.warnings,
        "artifacts": _artifacts(outcome.run_dir),
        "commands": {
            "vf_eval": eval_command(outcome.run_dir),
            "resume": resume_command(config) if outcome.run_dir else None,
        },
        "versions": {name: version(name) for name in ("verifiers-gepa", "verifiers", "gepa")},
    }


def write_outcome(outcome: Outcome, config: GEPAConfig) -> None:
    """Write the prompt and the result into the run directory. Raises `OSError`."""
    if outcome.run_dir is None:
        return
    write_text(outcome.run_dir / PROMPT_FILE, outcome.best_system_prompt)
    write_json(outcome.run_dir / EVAL_FILE, eval_config(config, outcome.run_dir))
    write_json(outcome.run_dir / RESULT_FILE, result_json(outcome, config))


def log_outcome(outcome: Outcome, config: GEPAConfig) -> None:
    """Say how the run ended, what it found and where, and how to go on."""
    for warning in outcome.warnings:
        logger.warning("%s", warning)
    if outcome.seed_val_mean is not None and outcome.best_val_mean is not None:
        logger.info(
            "val mean: %.4f with the seed prompt, %.4f with prompt %d (of %d candidates)",
            outcome.seed_val_mean,
            outcome.best_val_mean,
            outcome.best_candidate,
            len(outcome.candidates),
        )
    if outcome.run_dir is not None:
        mark = " (partial: the best so far)" if outcome.partial else ""
        logger.info("prompt: %s%s", outcome.run_dir / PROMPT_FILE, mark)
        if outcome.partial:
            logger.info("go on with: %s", resume_command(config))
        else:
            logger.info("evaluate it with: %s", eval_command(outcome.run_dir))
    rollouts = outcome.rollouts
    summary = f"{rollouts['charged']} of {rollouts['budget']} rollouts"
    log = logger.error if outcome.status == "failed" else logger.info
    log("%s (%s): %s", outcome.status, summary, outcome.message)


def eval_config(config: GEPAConfig, run_dir: Path) -> dict[str, Any]:
    """The config of an eval of the best prompt: the same env, model, endpoint and sampling."""
    settings = config.model_dump(mode="json")
    env = {name: settings[name] for name in settings if name not in OWN_FIELDS}
    env["taskset"]["system_prompt"] = str(run_dir / PROMPT_FILE)
    shared = ("model", "client", "sampling", "max_concurrent", "output_dir")
    return {"env": env, **{name: settings[name] for name in shared}}


def eval_command(run_dir: Path | None) -> str | None:
    """The `vf-eval` command line that runs the best prompt, None where nothing was written."""
    return None if run_dir is None else shlex.join(["vf-eval", "@", str(run_dir / EVAL_FILE)])


def _artifacts(run_dir: Path | None) -> dict[str, str]:
    names = {
        "prompt": PROMPT_FILE,
        "config": CONFIG_FILE,
        "eval_config": EVAL_FILE,
        "splits": SPLITS_FILE,
        "traces": "traces.jsonl",
        "reflections": "reflections.jsonl",
        "decisions": "decisions.jsonl",
        "candidates": "candidates.json",
        "run_log": "run_log.json",
        "candidate_tree": "candidate_tree.html",
    }
    if run_dir is None:
        return {}
    return {key: str(run_dir / name) for key, name in names.items() if (run_dir / name).exists()}
