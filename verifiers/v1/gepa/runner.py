"""`run_gepa`: one run from the config to the best prompt, top to bottom.

`gepa.optimize` blocks; verifiers is async. The run owns one event loop (`Drive`), holds
`env.serving()` open on it, and calls `optimize` on the same thread: every batch of rollouts and
every gather of teacher calls runs on that loop, and a Ctrl-C unwinds straight through `optimize`
into the teardown here.
"""

import asyncio
import dataclasses
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gepa.api import optimize
from gepa.core.callbacks import GEPACallback

import verifiers.v1 as vf
from verifiers.v1.gepa import checks
from verifiers.v1.gepa.adapter import COMPONENT, GEPAAdapter
from verifiers.v1.gepa.budget import Budget, SearchStopped
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, seed_prompt, split_tasks
from verifiers.v1.gepa.evaluation import Evaluation, Evaluator
from verifiers.v1.gepa.failures import Fault
from verifiers.v1.gepa.identity import check_identity, run_identity, write_identity
from verifiers.v1.gepa.journal import Journal
from verifiers.v1.gepa.opening import run_seed_pass
from verifiers.v1.gepa.preflight import check_endpoints
from verifiers.v1.gepa.progress import GEPALog, Progress
from verifiers.v1.gepa.records import hidden_texts
from verifiers.v1.gepa.reflection import Reflection
from verifiers.v1.gepa.replay import Divergence, Replay
from verifiers.v1.gepa.report import (
    RESULT_FILE,
    Outcome,
    Status,
    log_outcome,
    result_object,
    write_outcome,
)
from verifiers.v1.gepa.rollouts import Rollouts
from verifiers.v1.gepa.rundir import SPLITS_FILE, locked, write_config, write_json
from verifiers.v1.gepa.stops import stop_check
from verifiers.v1.gepa.unmeasured import Unmeasured
from verifiers.v1.utils.drive import Drive, Held, Interrupted
from verifiers.v1.utils.texts import read_text

logger = logging.getLogger(__name__)


class GEPAError(RuntimeError):
    """The run could not go on. `outcome` is what is known (and was written) until then."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class RunInterrupted(Interrupted):
    """A signal ended the run, in order. `outcome` is what is known (and was written) until then."""

    def __init__(self, signum: int, outcome: Outcome) -> None:
        super().__init__(signum)
        self.outcome = outcome


@dataclass(frozen=True)
class Plan:
    """What a run will work on, known before anything is spent."""

    split: Split
    seed_prompt: str
    warnings: list[str]


@dataclass(frozen=True)
class Ending:
    """How the search ended."""

    status: Status
    reason: str
    message: str
    error: BaseException | None = None


def load_env(config: GEPAConfig) -> vf.Env:
    """The env of `config`, with `taskset.system_prompt` read as what it is: UTF-8 text whose line
    ends are part of it (the host reads it in the locale's encoding and translates them)."""
    path = config.taskset.system_prompt
    if path is None:
        return vf.load_environment(config)
    taskset = config.taskset.model_copy(update={"system_prompt": None})
    env = vf.load_environment(config.model_copy(update={"taskset": taskset}))
    env.taskset.system_prompt = read_text(path)
    return env


def plan_run(env: vf.Env, config: GEPAConfig) -> Plan:
    """Check the run and choose its tasks and seed prompt; nothing is sent or written. Raises
    `ConfigError` or `SplitError` with one line that says what to change."""
    checks.check_single_agent(config)
    checks.check_credentials(config)
    checks.check_secrets(config)
    checks.check_run_dir(config)
    if config.taskset.system_prompt is not None:
        env.taskset.system_prompt = read_text(config.taskset.system_prompt)
    split = split_tasks(env.taskset, config)
    prompt = seed_prompt(split.tasks, config)
    warnings = checks.check_delivery(config, split)
    logger.info("what it costs:\n%s", checks.check_budget(config, split))
    for note in split.notes:
        logger.info("%s", note)
    return Plan(split, prompt, [*split.notes, *warnings])


def run_gepa(env: vf.Env, config: GEPAConfig) -> Outcome:
    """Optimize the system prompt of `env`'s agent.

    Blocks until the run has ended, and writes its directory unless `save_results` is off. SIGINT
    and SIGTERM end it in order when it is called in the main thread. Called where an event loop
    already runs (a notebook), it works in a thread of its own and signals are the caller's.

    Raises `ConfigError` or `SplitError` before anything is spent, `GEPAError` where the run can't
    go on, `RunInterrupted` (a `KeyboardInterrupt`) after a signal; the last two leave the best
    prompt so far in the run directory.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(env, config)
    logger.warning("an event loop is running here: working in a thread, signals are the caller's")
    with ThreadPoolExecutor(1, thread_name_prefix="gepa") as thread:
        return thread.submit(_run, env, config).result()


def _run(env: vf.Env, config: GEPAConfig) -> Outcome:
    plan = plan_run(env, config)
    with locked(config) as run_dir:
        replay = _open_record(plan, config, run_dir)
        outcome, error = _optimize(env, config, plan, run_dir, replay)
    if isinstance(error, Interrupted):
        raise RunInterrupted(error.signum, outcome) from error
    if isinstance(error, KeyboardInterrupt):
        raise error
    if error is not None:
        raise GEPAError(outcome) from error
    return outcome


def _open_record(plan: Plan, config: GEPAConfig, run_dir: Path | None) -> Replay:
    """Write what is known before the first rollout, or read the record of the run to go on with."""
    if run_dir is None:
        return Replay()
    identity = run_identity(config, plan.split, plan.seed_prompt)
    if config.resume:
        check_identity(run_dir, identity)
        replay = Replay.load(run_dir)
        logger.info("going on with %s: %d rollouts and %d teacher replies", run_dir, *replay.left)
        write_config(config)
        return replay
    write_config(config)
    write_json(run_dir / SPLITS_FILE, plan.split.record())
    write_identity(run_dir, identity)
    logger.info("run directory: %s", run_dir)
    return Replay()


def _optimize(
    env: vf.Env, config: GEPAConfig, plan: Plan, run_dir: Path | None, replay: Replay
) -> tuple[Outcome, BaseException | None]:
    """The run itself; its outcome, and what cut it short if anything did."""
    started = time.monotonic()
    budget = Budget(_total(config, run_dir))
    budget.failed += replay.failed
    budget.attempted += replay.failed
    for role, usage in replay.usage:
        budget.count_tokens(role, usage)
    with Drive() as drive, drive.signals():
        journal = Journal(run_dir)
        unmeasured = Unmeasured(config.max_dropped_fraction, journal)
        progress = Progress(budget, unmeasured, run_dir)
        rollouts = Rollouts(env, config, budget, journal, replay)
        hide = hidden_texts([run_dir] if run_dir else [])
        columns = config.reflection_columns
        adapter = GEPAAdapter(rollouts, plan.split, drive, unmeasured, config.rollouts_per_task)
        adapter.columns, adapter.hide = columns, hide
        reflection = Reflection(config, plan.seed_prompt, drive, journal, replay, budget)
        evaluation = Evaluation()
        serving = Held(env.serving())
        try:
            if config.preflight and not config.resume:
                drive.run(check_endpoints(config))
            drive.run(serving.open())
            val = run_seed_pass(adapter, plan.seed_prompt)
            split = dataclasses.replace(plan.split, val=val)
            if run_dir is not None:
                write_json(run_dir / SPLITS_FILE, plan.split.record(val))
            stop = _search(plan, split, config, adapter, reflection, progress, started)
            ending = Ending("finished", stop.reason, str(stop))
            progress.write_files()
            if config.phase != "optimize":
                candidates, val_means, _ = _pool(plan, progress)
                evaluator = Evaluator(config, split, rollouts, unmeasured, drive, evaluation)
                evaluator.validate(candidates, val_means)
                if config.phase != "validate":
                    evaluator.test(candidates)
        except KeyboardInterrupt as signal:
            ending = Ending("interrupted", str(signal) or "SIGINT", f"stopped by {signal}", signal)
        except (Fault, Divergence) as fault:
            ending = Ending("failed", "fault", str(fault), fault)
        except Exception as error:
            logger.debug("the run failed", exc_info=True)
            ending = Ending("failed", "fault", f"{type(error).__name__}: {error}", error)
        finally:
            drive.finish(serving.close())
            drive.finish(reflection.teacher.aclose())
        outcome = _outcome(ending, plan, config, adapter, reflection, progress, evaluation)
        if not outcome.partial or replay.left == (0, 0):
            outcome, ending = _write(outcome, ending, config, plan, progress)
    log_outcome(outcome, config)
    return outcome, ending.error


def _total(config: GEPAConfig, run_dir: Path | None) -> int:
    """The budget: the config's, but of a run that had spent its own, at least that."""
    total = config.max_total_rollouts
    if not config.resume or run_dir is None or not (run_dir / RESULT_FILE).exists():
        return total
    result = json.loads((run_dir / RESULT_FILE).read_bytes())
    spent = result["rollouts"]["budget"]
    if result["status"] != "finished" or result["finish_reason"] != "budget" or total > spent:
        return total
    logger.info("the run has already finished: raise --max-total-rollouts above %d to go on", spent)
    return int(spent)


def _write(
    outcome: Outcome, ending: Ending, config: GEPAConfig, plan: Plan, progress: Progress
) -> tuple[Outcome, Ending]:
    """Write the outcome; where the disk refuses, the run has failed. (Not called for a resumed run
    that was cut short before it caught up with its record: what stands there knows more.)"""
    try:
        progress.write_files()
        result = result_object(outcome, config, plan.split)
        outcome = dataclasses.replace(outcome, result=result)
        write_outcome(outcome, config)
    except (OSError, Fault) as error:
        if ending.error is not None:
            logger.error("the outcome could not be written: %s", error)
            return outcome, ending
        message = f"the outcome could not be written: {error}"
        ending = Ending("failed", "fault", message, error)
        outcome = dataclasses.replace(outcome, status="failed", message=message)
    return outcome, ending


def _search(
    plan: Plan,
    split: Split,
    config: GEPAConfig,
    adapter: GEPAAdapter,
    reflection: Reflection,
    progress: Progress,
    started: float,
) -> SearchStopped:
    """gepa's search. What it found is in `progress.state`; returned is why it stopped."""
    minibatch = min(config.reflection_minibatch_size, len(split.train))
    budget, run_dir = adapter.rollouts.budget, adapter.rollouts.journal.run_dir
    proposal = 2 * minibatch * config.rollouts_per_task
    try:
        optimize(
            seed_candidate={COMPONENT: plan.seed_prompt},
            trainset=[task.data.idx for task in split.train],
            valset=[task.data.idx for task in split.val],
            adapter=adapter,
            reflection_strategy=reflection,
            reflection_minibatch_size=minibatch,
            stop_callbacks=stop_check(
                config, proposal, budget, reflection, progress, run_dir, started
            ),
            # Scales differ: whether a score is perfect is not gepa's to guess.
            skip_perfect_score=config.perfect_score is not None,
            perfect_score=config.perfect_score if config.perfect_score is not None else 1.0,
            # A directory would make gepa write a pickle there, and load the one it finds.
            run_dir=None,
            seed=config.seed,
            track_best_outputs=False,
            logger=GEPALog(),
            callbacks=[cast("GEPACallback", progress)],  # gepa looks each method up by name
        )
    except SearchStopped as stop:
        return stop
    return SearchStopped("ended", "gepa ended the search")


def _outcome(
    ending: Ending,
    plan: Plan,
    config: GEPAConfig,
    adapter: GEPAAdapter,
    reflection: Reflection,
    progress: Progress,
    evaluation: Evaluation,
) -> Outcome:
    rollouts, budget = adapter.rollouts, adapter.rollouts.budget
    candidates, val_means, parents = _pool(plan, progress)
    best = evaluation.deployed
    if best is None:
        best = max(range(len(val_means)), key=val_means.__getitem__, default=0)
    prompt = candidates[best]
    throttle = rollouts.throttle
    warnings = [*plan.warnings, *adapter.unmeasured.warnings]
    if throttle.lowest < throttle.most:
        warnings.append(
            f"the endpoint throttled: at times only {throttle.lowest} rollouts were in flight"
        )
    if "\r" in prompt:
        warnings.append(
            "the prompt holds carriage returns; vf-eval drops them when it reads the prompt's file"
        )
    return Outcome(
        status=ending.status,
        finish_reason=ending.reason,
        message=ending.message,
        best_system_prompt=prompt,
        best_candidate=best,
        candidates=candidates,
        val_means=val_means,
        parents=parents,
        evaluation=evaluation,
        unvalidated=adapter.unvalidated,
        rollouts={
            "budget": budget.total,
            "charged": budget.charged,
            "attempted": budget.attempted,
            "failed": budget.failed,
            "replayed": budget.replayed,
            "reused": budget.reused,
            "uncharged": budget.uncharged,
        },
        proposals={
            **reflection.counts,
            "accepted": progress.accepted,
            "rejected": progress.rejected,
        },
        tokens=budget.tokens,
        endpoints=rollouts.endpoints.counts(),
        dropped=adapter.unmeasured.dropped,
        warnings=warnings,
        run_dir=config.run_dir if config.save_results else None,
    )


def _pool(plan: Plan, progress: Progress) -> tuple[list[str], list[float], list[int | None]]:
    """The candidates so far, their val means and their parents."""
    state = progress.state
    if state is None:
        means = [] if progress.seed_val_mean is None else [progress.seed_val_mean]
        return [plan.seed_prompt], means, [None]
    return (
        [candidate[COMPONENT] for candidate in state.program_candidates],
        list(state.program_full_scores_val_set),
        [ids[0] for ids in state.parent_program_for_candidate],
    )
