"""What a run will work on: its env, checked, its tasks, its seed prompt. Nothing is sent.

A dry run ends here, so nothing that only a run needs is imported.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, seed_prompt, split_tasks
from verifiers.v1.gepa.prepare import checks, requests
from verifiers.v1.gepa.prepare.extent import check_extent
from verifiers.v1.gepa.prepare.identity import check_identity, run_identity
from verifiers.v1.gepa.prepare.rundir import write_config
from verifiers.v1.utils.texts import is_marked, read_text, shorten

logger = logging.getLogger(__name__)

SHOWN_CHARS = 80
"""How much of a text that was taken for a file's name is repeated, in characters."""


@dataclass(frozen=True)
class Plan:
    """What a run will work on, known before anything is spent."""

    split: Split
    seed_prompt: str
    warnings: list[str]


def load_env(config: GEPAConfig) -> vf.Env:
    """The env of `config`, with `taskset.system_prompt` read as what it is: UTF-8 text whose line
    ends are part of it (the host reads it in the locale's encoding and translates them)."""
    path = config.taskset.system_prompt
    if path is None:
        return vf.load_environment(config)
    taskset = config.taskset.model_copy(update={"system_prompt": None})
    env = vf.load_environment(config.model_copy(update={"taskset": taskset}))
    env.taskset.system_prompt = _prompt_in(path)
    return env


def _prompt_in(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise checks.ConfigError(
            f"--taskset.system-prompt {shorten(str(path), SHOWN_CHARS)} can't be read "
            f"({error.strerror}): it takes a file; a text is given with --initial-prompt"
        ) from error


def plan_run(env: vf.Env, config: GEPAConfig) -> Plan:
    """Check the run and choose its tasks and seed prompt; nothing is sent or written. Raises
    `ConfigError` or `SplitError` with one line that says what to change."""
    checks.check_single_agent(config)
    checks.check_env(env, config)
    checks.check_credentials(config)
    checks.check_numbers(config)
    checks.check_search(config)
    requests.check_secrets(config)
    for given, base in config.cut_addresses.items():
        logger.info("the base URL of %s is %s", given, base)
    requests.check_sampling(config)
    requests.check_limits(config)
    checks.check_run_dir(config)
    checks.check_cache(config)
    checks.check_reuse(config)
    checks.check_prices(config)
    checks.check_trackers(config)
    path = config.taskset.system_prompt
    if path is not None:
        env.taskset.system_prompt = _prompt_in(path)
        if is_marked(path):
            logger.info("%s starts with a byte order mark, which is no part of the prompt", path)
    split = split_tasks(env.taskset, config)
    prompt = seed_prompt(split.tasks, config)
    checks.check_prompt(config, prompt)
    requests.check_guidance(config, prompt)
    checks.check_workers(env, config, split)
    warnings = [*checks.check_delivery(config, split), *requests.eval_warnings(config)]
    table = checks.check_budget(config, split)
    if not config.resume:
        logger.info("what it costs:\n%s", table)
    for note in split.notes:
        logger.info("%s", note)
    warnings += check_extent(env, config)
    for warning in warnings:
        logger.warning("%s", warning)
    return Plan(split, prompt, [*split.notes, *warnings])


def dry_run(env: vf.Env, config: GEPAConfig) -> None:
    """Do all that can be done before anything is sent: check the run, and write its config (of a
    run to go on with, check that it is the same one, and write nothing). Raises as `run_gepa`."""
    plan = plan_run(env, config)
    if config.resume:
        check_identity(config.run_dir, run_identity(config, plan.split, plan.seed_prompt))
        logger.info("dry run: %s can be gone on with", config.run_dir)
    elif config.save_results:
        logger.info("dry run: the config is valid, written to %s", write_config(config))
