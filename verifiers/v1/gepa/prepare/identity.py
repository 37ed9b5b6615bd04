"""What gives a stored score its meaning, and so must not change between a run and its resume.

Scores, prompts and proposals of a record can be used again only by a run that would have made the
same ones. What merely changes how far a run goes, how fast, or where to (budget, stop conditions,
concurrency, endpoints, keys, display) may change freely.
"""

import json
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import BaseClientConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import NAMES, Split
from verifiers.v1.gepa.record.files import IDENTITY_FILE, TRACES_FILE
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.teacher.template import GUIDANCE, PARTS
from verifiers.v1.utils.texts import shorten, write_text

OWN_FIELDS = frozenset(GEPAConfig.model_fields) - frozenset(vf.EnvConfig.model_fields)
FREE_FIELDS = frozenset({"interception", "retries", "timeout", "max_concurrent_agents"})
"""Fields of every env that say how episodes are run, not what they measure."""

LIMIT_FIELDS = (
    "max_total_rollouts",
    "max_reflections",
    "max_tokens",
    "max_cost",
    "max_minutes",
    "patience",
)
"""How far the search goes; a resume may change it."""

SEARCH_FIELDS = (
    "reflection_minibatch_size",
    "rollouts_per_task",
    "reuse_rollouts",
    "perfect_score",
    "proposals_per_iteration",
    "parents_per_iteration",
    "accepted_per_iteration",
    "candidate_selection",
    "frontier_type",
    "objectives",
    "acceptance",
    "stop_val_early",
)
"""How the search goes: with another value it would have asked for something else."""

FRONTIER_FIELDS = ("frontier_type", "objectives")
"""Those that are of no matter for the seed prompt's val pass; the first minibatch is drawn after a
parent, and so with their help."""

EVALUATION_FIELDS = ("num_finalists", "validation_rollouts", "test_rollouts")
"""What the phases after the search run: to run them on until the result pleases is no evidence."""

PACKAGES = ("verifiers-gepa", "verifiers", "gepa")


class IdentityError(ValueError):
    """A resume would mix two different runs; the message has one line per difference."""


def run_identity(config: GEPAConfig, split: Split, seed_prompt: str) -> dict[str, Any]:
    """The identity of a run, a JSON object of flat names."""
    parts = split.record()
    identity = {
        **measured_by(config),
        "teacher": {
            "model": config.teacher[0],
            "sampling": config.reflection_sampling.model_dump(mode="json", exclude_none=True),
            "columns": config.reflection_columns,
            **_guidance(config),
            "template": prompt_digest("".join(PARTS)),
            "chars": config.max_reflection_chars,
        },
        "max_prompt_chars": config.max_prompt_chars,
        "protect": config.protect,
        "seed": config.seed,
        "seed_prompt": seed_prompt,
        **{name: getattr(config, name) for name in SEARCH_FIELDS},
        **{name: getattr(config, name) for name in EVALUATION_FIELDS},
        "split": {name: [task["hash"] for task in parts[name]] for name in NAMES},
    }
    return dict(flat(identity))


def _guidance(config: GEPAConfig) -> dict[str, Any]:
    """The user's guidance and the wording around it; nothing where there is none, as in the record
    of a run from before there was any."""
    if config.reflection_guidance is None:
        return {}
    return {"guidance": config.reflection_guidance, "guidance_template": prompt_digest(GUIDANCE)}


def measured_by(config: GEPAConfig) -> dict[str, Any]:
    """What gives the score of a prompt on a task its meaning: the env with its taskset and agents,
    the model, the sampling, the code."""
    env = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if name not in OWN_FIELDS and name not in FREE_FIELDS
    }
    env["taskset"].pop("system_prompt")  # its text is the seed prompt
    for judge in env["taskset"]["task"]["judges"]:
        for free in BaseClientConfig.model_fields:
            judge.pop(free, None)
    for name in agent_config_fields(config):
        for free in ("client", "retries"):
            env[name].pop(free)
        env[name]["harness"] = config.agent_harnesses()[name].model_dump(mode="json")
    return {
        **env,
        "model": config.student,
        "sampling": config.sampling.model_dump(mode="json", exclude_none=True),
        "version": {name: version(name) for name in PACKAGES},
    }


def write_identity(run_dir: Path, identity: dict[str, Any]) -> None:
    """Write it beside the record. Raises `OSError`."""
    write_text(run_dir / IDENTITY_FILE, json.dumps(identity, indent=2) + "\n")


def recorded_identity(run_dir: Path) -> dict[str, Any]:
    """The identity that a run directory holds, empty where there is none. Raises `OSError`, or
    `ValueError` where it is broken."""
    path = run_dir / IDENTITY_FILE
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is broken: {error}") from error


def check_identity(run_dir: Path, identity: dict[str, Any]) -> None:
    """Raise `IdentityError` with a line per field in which this run is not the recorded one."""
    path = run_dir / IDENTITY_FILE
    try:
        recorded = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise IdentityError(f"--resume: {path} can't be read ({error}): not a run's") from error
    names = [name for name in {**recorded, **identity} if recorded.get(name) != identity.get(name)]
    if {*names} <= {*FRONTIER_FIELDS} and not (names and _searching(run_dir / TRACES_FILE)):
        return
    lines = [f"  {name}: {_difference(recorded.get(name), identity.get(name))}" for name in names]
    raise IdentityError(
        "--resume: the recorded scores don't hold for this run, which differs in\n"
        + "\n".join(lines)
        + "\nput it back, or start another run"
    )


def _searching(traces: Path) -> bool:
    """Whether a record holds a rollout of a minibatch. A broken line is the replay's to name."""
    if not traces.exists():
        return False
    with traces.open("rb") as lines:
        return any(b'"split":"train"' in line for line in lines)


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested objects, each by its keys joined with dots."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    items = []
    for key, item in value.items():
        items += flat(item, f"{prefix}.{key}" if prefix else key)
    return items


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, list) and isinstance(new, list):
        pairs = list(zip_longest(old, new))
        changed = [position for position, pair in enumerate(pairs) if pair[0] != pair[1]]
        first = changed[0]
        return (
            f"{len(changed)} of {len(pairs)} entries, the first at position {first}: "
            f"{_shown(pairs[first][0])} in the record, {_shown(pairs[first][1])} now"
        )
    return f"{_shown(old)} in the record, {_shown(new)} now"


def _shown(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 120).replace("\n", " ")
