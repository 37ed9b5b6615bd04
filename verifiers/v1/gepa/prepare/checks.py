"""What can be known to be wrong before anything is spent.

Each check raises `ConfigError` with one line that says what is wrong and what to do about it.
"""

import contextlib
import json
import logging
import os
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, content_hash, proposal_cost
from verifiers.v1.gepa.prepare.identity import OWN_FIELDS
from verifiers.v1.gepa.record.files import IDENTITY_FILE, OWN_FILES, RESULT_FILE, TRACES_FILE
from verifiers.v1.gepa.spend.money import missing_prices
from verifiers.v1.gepa.teacher.quality import unmet
from verifiers.v1.utils.loaders import harness_class
from verifiers.v1.utils.prime import load_prime_config

logger = logging.getLogger(__name__)

ENV_FREE = {"timeout"}
"""Fields in which an env and its run may differ."""

CLEANED = OWN_FILES | {"logs", "gepa_state.bin", "generated_best_outputs_valset", "run_log.txt"}
"""What `--clean` may delete: our files, and those of the host's eval and GEPA."""

LOCAL_HINT = (
    "run it in this process with --local, or choose --agent.runtime.type "
    "subprocess, docker, podman, apptainer, modal or e2b"
)


class ConfigError(ValueError):
    """The run can't start as it is configured."""


def check_single_agent(config: GEPAConfig) -> None:
    """Several agents share one task but not one prompt, so there is nothing to optimize yet."""
    env_class = vf.environment_class(config.taskset.id, config.id)
    if not issubclass(env_class, vf.SingleAgentEnv):
        roles = ", ".join(agent_config_fields(config)) or "none"
        raise ConfigError(
            f"{config.env_id!r} runs {env_class.__name__}, a multi-agent env (agents: {roles}): "
            "only an env with one agent has the one system prompt that is optimized here"
        )


def check_env(env: vf.Env, config: GEPAConfig) -> None:
    """An env built from another config would run that one's tasks under this one's name."""
    own = env.config.model_dump(mode="json", exclude=ENV_FREE)
    ours = config.model_dump(mode="json", include=set(own))
    for name, value in own.items():
        if name == "taskset":
            for block in (value, ours[name]):
                block.pop("system_prompt", None)  # read here, see plan.load_env
        if name in ours and value != ours[name] and name not in OWN_FIELDS:
            raise ConfigError(
                f"the env was built from another config than the run's: {name} differs; build it "
                "with vf.load_environment(config)"
            )


def check_credentials(config: GEPAConfig) -> None:
    """A remote runtime without an account fails in every rollout, one by one."""
    for name, agent in agent_config_fields(config).items():
        kind = agent.runtime.type
        if kind == "prime":
            known = os.environ.get("PRIME_API_KEY") or load_prime_config().get("api_key")
            need = "run `prime login` or set PRIME_API_KEY"
        elif kind == "e2b":
            known, need = os.environ.get("E2B_API_KEY"), "set E2B_API_KEY"
        elif kind == "modal":
            known = os.environ.get("MODAL_TOKEN_ID") or (Path.home() / ".modal.toml").exists()
            need = "run `modal token new` or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        else:
            continue
        if not known:
            raise ConfigError(
                f"agent {name!r} runs in a {kind} sandbox and no {kind} account is set up: "
                f"{need}; or {LOCAL_HINT}"
            )


def check_search(config: GEPAConfig) -> None:
    """Options of the search that contradict each other, or would do nothing."""
    proposals, parents = config.proposals_per_iteration, config.parents_per_iteration
    if parents is not None and proposals % parents:
        raise ConfigError(
            f"--parents-per-iteration {parents} does not divide --proposals-per-iteration "
            f"{proposals}: every parent gets as many proposals"
        )
    accepted = config.accepted_per_iteration
    asked = "accepted_per_iteration" in config.model_fields_set
    if asked and accepted is not None and accepted > proposals:
        raise ConfigError(
            f"--accepted-per-iteration {accepted} is more than --proposals-per-iteration "
            f"{proposals}: lower it or leave it out"
        )
    if config.merge:
        raise ConfigError(
            "--merge combines texts of several kinds from two candidates, and a candidate has one "
            "text here, the system prompt: the merge would be one of the two; leave it out"
        )
    if config.objectives and config.frontier_type == "instance":
        raise ConfigError(
            "--objectives has no effect on --frontier-type instance: choose objective, hybrid or "
            "cartesian, or leave it out"
        )
    if config.phase in ("validate", "test") and not config.resume:
        raise ConfigError(
            f"--phase {config.phase} goes on with a run: name it and add --resume, or begin with "
            "--phase optimize or all"
        )
    if config.stop_val_early and config.perfect_score is None:
        raise ConfigError("--stop-val-early needs to know the best score: set --perfect-score")


def check_numbers(config: GEPAConfig) -> None:
    """A number that JSON has no form for would end the run when it is first written."""
    for name, value in config.model_dump(mode="json").items():
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise ConfigError(f"{name} holds a number that is not finite") from error


def check_delivery(config: GEPAConfig, split: Split) -> list[str]:
    """Warnings about harnesses that don't hand the system prompt on as one. Raises `ConfigError`
    where such a harness can't run the tasks at all."""
    warnings = []
    for name, harness in config.agent_harnesses().items():
        if harness_class(harness.id).APPENDS_SYSTEM_PROMPT:
            continue
        if any(not isinstance(task.data.prompt, str) for task in split.tasks):
            raise ConfigError(
                f"harness {harness.id!r} of agent {name!r} takes no system prompt, and can't fold "
                "one into prompts that are lists of messages: choose another harness"
            )
        warnings.append(
            f"harness {harness.id!r} of agent {name!r} takes no system prompt: the candidate is "
            "put in front of the user's message instead, and that is what is optimized"
        )
    return warnings


def check_budget(config: GEPAConfig, split: Split) -> str:
    """What the budget buys, as a table. Raises `ConfigError` where it can't pay for the seed
    prompt's val pass, or, unless `allow_small_budget`, for one full proposal after it."""
    budget, val = config.max_total_rollouts, len(split.val) * config.rollouts_per_task
    proposal = proposal_cost(config, split)
    least = val + proposal + val
    terms = f"{val} for the seed prompt's val pass, {proposal} to propose, {val} to validate"
    if budget < val:
        raise ConfigError(
            f"--max-total-rollouts {budget} can't pay for the seed prompt's val pass ({val} "
            "rollouts): raise it or lower --num-val"
        )
    if budget < least and not config.allow_small_budget:
        raise ConfigError(
            f"--max-total-rollouts {budget} can't pay for one accepted proposal ({least} rollouts: "
            f"{terms}): raise it, lower --num-val, or insist with --allow-small-budget"
        )
    number = config.proposals_per_iteration
    kept = min(config.accepted_per_iteration or number, number)
    if most_accepted(budget - val, val, proposal, number, kept) < 3:
        logger.warning(
            "the budget pays for fewer than 3 accepted proposals: the search will hardly get going"
        )
    return budget_table(budget, val, proposal, number, kept, _uncharged(config, split))


def _uncharged(config: GEPAConfig, split: Split) -> int:
    """The most rollouts that the phases after the search can take."""
    phases = {
        "validate": (1 + config.num_finalists) * len(split.val) * config.validation_rollouts,
        "test": 2 * len(split.test) * config.test_rollouts,
    }
    return sum(rollouts for name, rollouts in phases.items() if config.phase in (name, "all"))


def most_accepted(left: int, val: int, proposal: int, number: int, kept: int) -> int:
    """Proposals that `left` rollouts after the seed prompt's val pass can make candidates, where
    each of them wins its minibatch; the other arguments are those of `budget_table`."""
    accepted = 0
    while left >= proposal + val:
        drawn = min(number, (left - val) // proposal)  # near the end fewer are drawn
        left -= drawn * proposal
        passes = min(kept, drawn, left // val)
        left -= passes * val
        accepted += passes
    return accepted


def budget_table(
    budget: int, val: int, proposal: int, number: int, kept: int, uncharged: int
) -> str:
    """What `budget` rollouts buy, as a table for a terminal. `val` and `proposal` are the rollouts
    of a val pass and of a proposal's two minibatches; an iteration makes `number` proposals and
    keeps `kept`; `uncharged` are the rollouts after the search."""
    left, iteration = budget - val, number * proposal + kept * val
    accepted = most_accepted(left, val, proposal, number, kept)
    table = Table("", "rollouts", title=f"a budget of {budget} rollouts")
    table.columns[1].justify = "right"
    table.add_row("the seed prompt's val pass", str(val))
    table.add_row("a proposal that is rejected", str(proposal))
    table.add_row("a proposal that is accepted", str(proposal + val))
    if number > 1:
        table.add_row(f"an iteration of {number} proposals, {kept} accepted", str(iteration))
    table.add_section()
    table.add_row("accepted proposals, if all win", str(accepted))
    table.add_row("proposals, if none is accepted", str(left // proposal))
    table.add_section()
    table.add_row("on top of it, to validate and test, at most", str(uncharged))
    console = Console(file=StringIO(), width=72, color_system=None)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip()


def check_prices(config: GEPAConfig) -> None:
    """What has no price can't be capped. Raises `ConfigError`."""
    if config.max_cost is not None and (missing := missing_prices(config)):
        raise ConfigError(
            f"--max-cost {config.max_cost:g}: {'; '.join(missing)} (US dollars per million tokens)"
        )


def check_trackers(config: GEPAConfig) -> None:
    """A tracker that is asked for must be there, and has a place. Raises `ConfigError`."""
    for name in ("wandb", "mlflow"):
        if not getattr(config, name):
            continue
        if not config.save_results:
            raise ConfigError(f"--{name} writes below the run directory: save results")
        spec = find_spec(name)
        # A folder of that name, which wandb itself leaves, is no installation.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"--{name}: {name} is not installed: pip install 'verifiers-gepa[{name}]'"
            )


def check_cache(config: GEPAConfig) -> None:
    """The evaluation cache is made now: what is measured must be storable. Raises `ConfigError`."""
    if config.evaluation_cache is None:
        return
    try:
        config.evaluation_cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--evaluation-cache: {error}") from error
    if not os.access(config.evaluation_cache, os.W_OK):
        raise ConfigError(f"--evaluation-cache: {config.evaluation_cache} can't be written")


def check_prompt(config: GEPAConfig, seed_prompt: str) -> None:
    """The seed prompt must be a text, and meet what every proposal must. Raises `ConfigError`."""
    if config.initial_prompt is not None and (name := file_named(config.initial_prompt)):
        raise ConfigError(
            f"--initial-prompt takes the prompt itself, and {name} is a file: to start from its "
            f"text, use --taskset.system-prompt {name}"
        )
    if not all(text.strip() for text in config.protect):
        raise ConfigError("--protect holds a blank text, which every prompt would do without")
    for text in config.protect:
        if text not in seed_prompt and (name := file_named(text)):
            raise ConfigError(
                f"--protect takes the texts themselves, and {name} is a file: give what it holds"
            )
    if unfit := unmet(seed_prompt, config.max_prompt_chars, config.protect):
        raise ConfigError(f"the seed prompt can't be used: {unfit}")


def file_named(text: str) -> str | None:
    """The file whose name was given in place of a text, perhaps behind an `@`."""
    for name in (text.strip(), text.strip().removeprefix("@")):
        with contextlib.suppress(OSError, ValueError):  # too long for a name, for example
            if name and Path(name).is_file():
                return name
    return None


def check_reuse(config: GEPAConfig) -> None:
    """Rollouts are reused from the record of the run. Raises `ConfigError`."""
    limit = config.reuse_rollouts
    if limit is None:
        return
    if not config.save_results:
        raise ConfigError("--reuse-rollouts takes them from the run's record: save results")
    if limit < config.rollouts_per_task:
        raise ConfigError(
            f"--reuse-rollouts {limit} leaves too few to average with --rollouts-per-task "
            f"{config.rollouts_per_task}: raise it to at least that"
        )


def check_workers(env: vf.Env, config: GEPAConfig, split: Split) -> None:
    """What a worker builds from a task's data must be that task. Raises `ConfigError`."""
    if config.workers is None:
        return
    if config.max_concurrent is not None and config.workers > config.max_concurrent:
        raise ConfigError(
            f"--workers {config.workers} is more than --max-concurrent {config.max_concurrent}: "
            "some would have nothing to do"
        )
    if config.interception.type != "elastic":
        raise ConfigError(
            f"--workers: every worker would open the interception of type "
            f"{config.interception.type!r}, at the same address: use --interception.type elastic"
        )
    build = type(env.taskset).task_type()
    for task in split.tasks:
        try:
            data = build.data_type().model_validate(task.data.model_dump(mode="json"))
            again = build(data, config.taskset.task)
            same = type(task) is build and content_hash(again) == content_hash(task)
        except ValueError:
            same = False
        if not same or vars(again).keys() != vars(task).keys():
            raise ConfigError(
                f"--workers: a worker gets a task's data alone, and task {task.data.idx} of "
                f"{config.taskset.id} is more than that: leave it out"
            )


def check_run_dir(config: GEPAConfig) -> None:
    """A run directory is never silently written over, and only a run's own is gone on with. Raises
    `ConfigError`."""
    run_dir = config.run_dir
    if config.resume:
        if config.clean:
            raise ConfigError("--resume goes on with what --clean deletes: drop one of them")
        if not config.save_results:
            raise ConfigError("--resume needs the record of the run: drop --no-save-results")
        if config.run_name_made_up:
            raise ConfigError(
                "--resume needs the run: name it with --run.name, or resume with "
                "gepa @ <run>/configs/resolved/gepa.json --resume"
            )
        if not (run_dir / IDENTITY_FILE).is_file():
            raise ConfigError(
                f"--resume: {run_dir} holds no run; name it with --run.name, or resume with "
                "gepa @ <run>/configs/resolved/gepa.json --resume"
            )
        return
    if not config.save_results or not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is not a directory: pick another --run.name")
    if config.clean:
        _check_clean(config)
    elif any((run_dir / name).exists() for name in (IDENTITY_FILE, TRACES_FILE, RESULT_FILE)):
        raise ConfigError(
            f"{run_dir} already holds a run: go on with it with --resume, pick another --run.name, "
            "or delete it with --clean"
        )


def _check_clean(config: GEPAConfig) -> None:
    """`--clean` deletes what runs leave, below the output directory, and nothing else."""
    run_dir = config.run_dir
    outer, inner = config.output_dir.resolve(), run_dir.resolve()
    if inner == outer or not inner.is_relative_to(outer):
        raise ConfigError("--clean deletes only a directory below --output-dir")
    others = sorted(path.name for path in run_dir.iterdir() if path.name not in CLEANED)
    if others:
        raise ConfigError(
            f"--clean: {run_dir} holds what no run has written ({', '.join(others[:3])}): delete "
            "it yourself, or pick another --run.name"
        )
