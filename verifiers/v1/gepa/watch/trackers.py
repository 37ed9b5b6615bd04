"""Weights & Biases and MLflow, through gepa's own tracker class.

gepa counts by iteration. Here the x axis is rollouts, the unit of the budget, and the two can't
share a run: wandb drops what goes back on its axis. So `gepa.optimize` is not told to track, and
the run has a tracker of its own. A tracker that fails costs one warning and nothing else.
"""

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from gepa.logging.experiment_tracker import ExperimentTracker, create_experiment_tracker

from verifiers.v1.gepa.record.files import MLFLOW_FOLDER
from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.gepa.report.outcome import Status
from verifiers.v1.gepa.run import Run
from verifiers.v1.utils.statistics import mean

logger = logging.getLogger(__name__)

AXIS = "rollouts"
"""The x axis: rollouts charged."""

CONFIG = ("seed", "max_total_rollouts", "reflection_minibatch_size", "rollouts_per_task")
"""What of the config a tracker is told, besides models, taskset and sizes: no URL, no header."""

WANDB_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
}
"""Else wandb sends what the run prints, its command line, and the state of the repository."""

GEPA_WARNING = "Warning: Failed to "
"""How gepa's tracker begins its line, on stdout, for every call that failed."""


class Tracker:
    """Tracks one run. Nothing that it does raises."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._warned = False
        self._tracker = _gepa_tracker(run)

    def start(self) -> None:
        config, split = self._run.config, self._run.plan.split
        about = {name: getattr(config, name) for name in CONFIG}
        about |= {"taskset": config.taskset.id, "model": config.student}
        about |= {"teacher": config.teacher[0], "run": config.run.name}
        about |= {f"num_{name}": len(getattr(split, name)) for name in ("train", "val", "test")}
        for step in (self._tracker.initialize, self._tracker.start_run):
            self._try(step)
        self._try(lambda: self._tracker.log_config(about))

    def decided(self, proposal: Proposal) -> None:
        """A proposal was decided."""
        metrics = {}
        pairs = {"before": proposal.scores_before or [], "after": proposal.scores_after or []}
        for name, scores in pairs.items():
            measured = [score for score in scores if score is not None]
            if measured and len(measured) == len(scores):
                metrics[f"minibatch_{name}"] = mean(measured)
        if proposal.val_mean is not None:
            metrics["val_mean"] = proposal.val_mean
        self._log(metrics, proposal.charged)

    def finish(self, status: str | None) -> None:
        """The last point, and what the run came to; `status` is how it ended, where it did in
        order."""
        comparison, budget = self._run.found.comparison, self._run.adapter.rollouts.budget
        self._log({}, budget.charged)
        summary: dict[str, Any] = {"status": status}
        summary |= {"deployed_candidate": self._run.found.deployed}
        if comparison is not None:
            summary |= {"delta_pp": 100 * comparison.delta, "improved": comparison.improved}
        known = {name: value for name, value in summary.items() if value is not None}
        self._try(lambda: self._tracker.log_summary(known))
        self._try(self._tracker.end_run)

    def _log(self, metrics: dict[str, float], charged: int) -> None:
        """Log `metrics`, and what grows with the run, at `charged` rollouts."""
        spending, progress = self._run.adapter.rollouts.budget.spending, self._run.progress
        series = dict(metrics)
        best = [m for m in (progress.best_val_mean, metrics.get("val_mean")) if m is not None]
        if best:
            series["best_val_mean"] = max(best)
        for role, tokens in spending.tokens.items():
            series |= {f"tokens/{role}/{kind}": count for kind, count in tokens.items()}
        if spending.usd is not None:
            series["cost_usd"] = spending.usd
        self._try(lambda: self._tracker.log_metrics(series, step=charged))

    def _try(self, call: Callable[[], object]) -> None:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                call()
        except Exception as error:  # noqa: BLE001 - whatever a tracker does, the run goes on
            self._warn(f"{type(error).__name__}: {error}")
        for line in printed.getvalue().splitlines():
            if line.startswith(GEPA_WARNING):
                self._warn(line.removeprefix("Warning: "))

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("a tracker failed: what it shows has gaps, the run has not (%s)", why)


@contextlib.contextmanager
def tracked(run: Run) -> Iterator[list[Status]]:
    """Track the run, where it is asked for, till it is over. Put into the list how it ended."""
    ended: list[Status] = []
    if not (run.config.wandb or run.config.mlflow):
        yield ended
        return
    tracker = Tracker(run)
    tracker.start()
    run.adapter.history.listeners.append(tracker.decided)
    try:
        yield ended
    finally:
        tracker.finish(ended[0] if ended else None)


def _gepa_tracker(run: Run) -> ExperimentTracker:
    """gepa's tracker, which writes below the run's directory."""
    config, run_dir = run.config, run.adapter.rollouts.journal.run_dir
    assert run_dir is not None  # see checks.check_trackers
    uri = os.environ.get("MLFLOW_TRACKING_URI", (run_dir.resolve() / MLFLOW_FOLDER).as_uri())
    return create_experiment_tracker(
        use_wandb=config.wandb,
        wandb_init_kwargs={
            "project": "verifiers-gepa",
            "name": config.run.name,
            "dir": str(run_dir),
            "settings": dict(WANDB_SETTINGS),
        },
        wandb_step_metric=AXIS,
        use_mlflow=config.mlflow,
        mlflow_tracking_uri=uri,
        mlflow_experiment_name="verifiers-gepa",
    )
