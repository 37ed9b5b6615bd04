"""`run_gepa`: one run from the config to the best prompt, top to bottom.

`gepa.optimize` blocks; verifiers is async. The run owns one event loop (`Drive`), holds
`env.serving()` open on it, and calls `optimize` on the same thread: every batch of rollouts and
every gather of teacher calls runs on that loop, and a Ctrl-C unwinds straight through `optimize`
into the teardown here.
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from gepa.api import optimize
from gepa.core.callbacks import GEPACallback

import verifiers.v1 as vf
from verifiers.v1.gepa.adapter import GEPAAdapter, SeedPass
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import (
    Split,
    least_cost,
    minibatch_size,
)
from verifiers.v1.gepa.evaluation import Evaluation, Evaluator
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.prepare.checks import ConfigError
from verifiers.v1.gepa.prepare.identity import (
    check_identity,
    measured_by,
    run_identity,
    write_identity,
)
from verifiers.v1.gepa.prepare.plan import Plan, plan_run
from verifiers.v1.gepa.prepare.preflight import check_endpoints
from verifiers.v1.gepa.prepare.rundir import locked, write_config, write_json
from verifiers.v1.gepa.record.files import COMPONENT, SPLITS_FILE
from verifiers.v1.gepa.record.history import History
from verifiers.v1.gepa.record.journal import Journal, Phase
from verifiers.v1.gepa.record.replay import Divergence, Replay
from verifiers.v1.gepa.record.usage import note_calls
from verifiers.v1.gepa.reflection import Reflection
from verifiers.v1.gepa.report.outcome import Outcome, log_outcome
from verifiers.v1.gepa.report.page import add_report
from verifiers.v1.gepa.report.result import (
    amend_result,
    as_recorded,
    mark_unfinished,
    write_outcome,
)
from verifiers.v1.gepa.rollouts.cache import EvaluationCache
from verifiers.v1.gepa.rollouts.frontier import Frontier
from verifiers.v1.gepa.rollouts.halves import Bar
from verifiers.v1.gepa.rollouts.rollouts import PHASES, Rollouts
from verifiers.v1.gepa.rollouts.unmeasured import Unmeasured
from verifiers.v1.gepa.run import Ending, Run, View, outcome_of, pool
from verifiers.v1.gepa.search.opening import run_seed_pass
from verifiers.v1.gepa.search.progress import GEPALog, Progress
from verifiers.v1.gepa.search.stops import stop_check
from verifiers.v1.gepa.search.strategies import build_strategies
from verifiers.v1.gepa.spend.budget import Budget, SearchStopped
from verifiers.v1.gepa.spend.money import Spending, prices_of
from verifiers.v1.gepa.teacher.quality import Quality
from verifiers.v1.gepa.teacher.records import Reader, hidden_texts
from verifiers.v1.gepa.watch.trackers import tracked
from verifiers.v1.utils.drive import Drive, Held, Interrupted
from verifiers.v1.utils.heap import frozen_heap

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


def run_gepa(env: vf.Env, config: GEPAConfig, view: View | None = None) -> Outcome:
    """Optimize the system prompt of `env`'s agent.

    Blocks until the run has ended, and writes its directory unless `save_results` is off. SIGINT
    and SIGTERM end it in order when it is called in the main thread. Called where an event loop
    already runs (a notebook), it works in a thread of its own; there SIGTERM stays the caller's,
    and a `KeyboardInterrupt` ends the run in order. `view` shows the run while it goes.

    Raises `ConfigError`, `SplitError`, and for a resume `IdentityError` or `RecordError`, before
    anything is spent, `GEPAError` where the run can't go on, `RunInterrupted` (a
    `KeyboardInterrupt`) after a signal; the last two leave the best prompt so far in the run
    directory.
    """
    if config.dry_run:
        raise ConfigError("dry_run is set, and this would spend: unset it")
    drive = Drive()
    if not _in_loop():
        return _run(env, config, drive, view)
    logger.warning("an event loop is running here: working in a thread, signals are the caller's")
    with ThreadPoolExecutor(1, thread_name_prefix="gepa") as thread:
        running = thread.submit(_run, env, config, drive, view)
        try:
            return running.result()
        except KeyboardInterrupt:
            drive.interrupt(signal.SIGINT)
            running.result()
            raise


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(env: vf.Env, config: GEPAConfig, drive: Drive, view: View | None) -> Outcome:
    plan = plan_run(env, config)
    with drive.signals(), locked(config) as run_dir, drive, frozen_heap():
        replay = _open_record(plan, config, run_dir)
        run = _assemble(env, config, plan, replay, run_dir, drive)
        with tracked(run) as ended, view(run) if view is not None else contextlib.nullcontext():
            outcome, error = _optimize(run)
            ended.append(outcome.status)
        log_outcome(outcome, config)
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
        _check_phase(config, replay)
        mark_unfinished(run_dir, replay)
        logger.info("going on with %s: %d rollouts and %d teacher replies", run_dir, *replay.left)
        write_config(config)
        write_identity(run_dir, identity)
        return replay
    write_config(config)
    write_json(run_dir / SPLITS_FILE, plan.split.record())
    write_identity(run_dir, identity)
    logger.info("run directory: %s", run_dir)
    return Replay()


def _check_phase(config: GEPAConfig, replay: Replay) -> None:
    """Raise `ConfigError` where a phase that comes before `config.phase` is not over."""
    before = PHASES[: PHASES.index(config.phase)] if config.phase != "all" else ()
    for phase in before:
        if phase not in replay.decisions.ended:
            raise ConfigError(
                f"--phase {config.phase}: the {phase} phase of {config.run_dir} is not complete; "
                f"go on with --phase {phase} or --phase all"
            )


def _optimize(run: Run) -> tuple[Outcome, BaseException | None]:
    """The run itself; its outcome, and what cut it short if anything did."""
    rollouts, drive = run.adapter.rollouts, run.adapter.drive
    run_dir = rollouts.journal.run_dir
    serving = Held(rollouts.serving())
    try:
        ending = _phases(run, serving)
    except KeyboardInterrupt as stop:
        ending = Ending("interrupted", str(stop) or "SIGINT", f"stopped by {stop}", stop)
    except (Fault, Divergence) as fault:
        ending = Ending("failed", "fault", str(fault), fault)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        logger.debug("the run failed", exc_info=True)
        ending = Ending("failed", "fault", f"{type(error).__name__}: {error}", error)
    for teardown in (serving.close, run.reflection.teacher.aclose):
        try:
            drive.finish(teardown())
        except (Exception, Fault, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            logger.warning("the teardown failed: %s: %s", type(error).__name__, error)
    _settle(run)
    outcome = outcome_of(ending, run)
    if run_dir is not None and not rollouts.replay.used_up:
        # Cut short before it had caught up with its record: a result that stands there knows more.
        result = amend_result(run_dir, ending.status, ending.reason, ending.message)
        if result is not None:
            return add_report(as_recorded(outcome, result)), ending.error
    return _write(outcome, ending, run)


def _assemble(
    env: vf.Env,
    config: GEPAConfig,
    plan: Plan,
    replay: Replay,
    run_dir: Path | None,
    drive: Drive,
) -> Run:
    """Put the parts of a run together; nothing is sent yet."""
    # What is on record was spent: a smaller budget stops the run, but can't unspend it.
    total = max(config.max_total_rollouts, replay.charged)
    budget = Budget(total, spending=Spending(prices_of(config)))
    budget.failed += replay.failed
    budget.attempted += replay.failed
    budget.spending.count_all(replay.calls)
    journal = Journal(run_dir)
    unmeasured = Unmeasured(config.max_dropped_fraction, journal)
    if config.frontier_type != "instance":
        unmeasured.frontier = Frontier(config.objectives)
    folder = config.evaluation_cache
    cache = EvaluationCache(folder, measured_by(config)) if folder is not None else None
    history = History(plan.seed_prompt, budget, replay, run_dir)
    adapter = GEPAAdapter(
        Rollouts(env, config, budget, journal, replay, cache),
        drive,
        unmeasured,
        history,
        plan.split,
        SeedPass(plan.seed_prompt),
        Reader(config.reflection_columns),
        Bar(config.perfect_score, accepts_equal=config.acceptance == "improvement_or_equal"),
        repeats=config.rollouts_per_task,
    )
    progress = Progress(adapter, run_dir)
    hide = hidden_texts([run_dir] if run_dir else [])
    split = plan.split
    quality = Quality(config, plan.seed_prompt, split.train, [*split.val, *split.test])
    reflection = Reflection(config, quality, drive, journal, replay, budget, hide, history)
    return Run(config, plan, adapter, reflection, progress, Evaluation())


def _phases(run: Run, serving: Held) -> Ending:
    """The search, then whatever of validation and test is asked for."""
    started = time.monotonic()
    config, plan, adapter = run.config, run.plan, run.adapter
    drive, run_dir = adapter.drive, adapter.rollouts.journal.run_dir
    if config.preflight and adapter.rollouts.replay.charged == 0:
        journal, budget = adapter.rollouts.journal, adapter.rollouts.budget
        drive.run(check_endpoints(config, lambda *call: note_calls([call], journal, budget)))
    drive.run(serving.open())
    val = run_seed_pass(adapter, plan.split.val, minibatch_size(config, plan.split))
    split = dataclasses.replace(plan.split, val=val)
    if run_dir is not None:
        write_json(run_dir / SPLITS_FILE, plan.split.record(val))
    stop = _search(run, split, started)
    _note_end(run, "optimize", stop)
    budget = adapter.rollouts.budget
    if config.resume and budget.charged == budget.replayed and stop.reason == "budget":
        logger.info(
            "the search had already finished: raise --max-total-rollouts above %d to go on",
            budget.total,
        )
    run.progress.write_files()
    # A phase that is on record is taken from there, whichever this process is to run.
    ended = adapter.rollouts.replay.decisions.ended
    if config.phase != "optimize" or "validate" in ended:
        found = pool(run)
        evaluator = Evaluator(config, split, adapter.rollouts, adapter.unmeasured, drive, run.found)
        evaluator.validate(found.candidates, found.val_means)
        _note_end(run, "validate", stop)
        if config.phase in ("test", "all") or "test" in ended:
            evaluator.test(found.candidates)
            _note_end(run, "test", stop)
    return Ending("finished", stop.reason, str(stop))


def _search(run: Run, split: Split, started: float) -> SearchStopped:
    """gepa's search. What it found is in `progress.state`; returned is why it stopped."""
    config = run.config
    strategies = build_strategies(config, run.adapter, run.reflection, split)
    try:
        optimize(
            seed_candidate={COMPONENT: run.plan.seed_prompt},
            trainset=[task.data.idx for task in split.train],
            valset=[task.data.idx for task in split.val],
            adapter=run.adapter,
            reflection_strategy=run.reflection,
            candidate_selection_strategy=strategies.selector,
            batch_sampler=strategies.minibatches,
            sampling_strategy=strategies.sampling,
            selection_strategy=strategies.selection,
            acceptance_criterion=config.acceptance,
            frontier_type=config.frontier_type,
            stop_callbacks=stop_check(
                config,
                least_cost(config, split),
                run.adapter,
                run.reflection,
                run.progress,
                started,
            ),
            # Scales differ: whether a score is perfect is not gepa's to guess.
            skip_perfect_score=config.perfect_score is not None,
            perfect_score=config.perfect_score if config.perfect_score is not None else 1.0,
            # A directory would make gepa write a pickle there, and load the one it finds.
            run_dir=None,
            seed=config.seed,
            track_best_outputs=False,
            logger=GEPALog(),
            callbacks=[cast("GEPACallback", run.progress)],  # it looks each method up by name
        )
    except SearchStopped as stop:
        return stop
    return SearchStopped("ended", "gepa ended the search")


def _note_end(run: Run, phase: Phase, stop: SearchStopped) -> None:
    """Put on record that a phase is over, for a run that goes on with a later one alone."""
    rollouts, reason, message = run.adapter.rollouts, stop.reason, str(stop)
    if rollouts.replay.decisions.ended.get(phase) != (reason, message):
        rollouts.journal.decision(
            {"decision": "ended", "phase": phase, "reason": reason, "message": message}
        )


def _settle(run: Run) -> None:
    """Count what was paid for an earlier deployed prompt, and say that test was seen with it."""
    rest = run.adapter.rollouts.settle_rest()
    if run.found.comparison is not None and rest["test"]:
        run.found.tested_before = rest["test"]
        run.adapter.unmeasured.warn(
            "the test tasks were run before with another deployed prompt: going on after a look at "
            "test makes the figures of test too good"
        )


def _write(outcome: Outcome, ending: Ending, run: Run) -> tuple[Outcome, BaseException | None]:
    """Write the outcome; where the disk refuses, the run has failed. The outcome, and what cut the
    run short."""
    try:
        if run.adapter.rollouts.replay.used_up:  # else these know more as well
            run.adapter.history.close()
            run.progress.write_files()
        write_outcome(outcome, run.config, run.plan.split)
    except (OSError, Fault) as error:
        if ending.error is not None:
            logger.error("the outcome could not be written: %s", error)
            return outcome, ending.error
        message = f"the outcome could not be written: {error}"
        return outcome_of(Ending("failed", "fault", message, error), run), error
    return add_report(outcome), ending.error
