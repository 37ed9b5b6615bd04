"""The seed prompt's val pass: the first thing a run pays for, and so where it must show that it
measures something.

The first rollout goes alone (the next one too where that could not be measured, and so on), so that
a reward that always raises, or a prompt that never arrives, costs a few rollouts and not a pass.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.dataset import task_idx
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.rollouts.measurements import Job, Measurement, mean_score
from verifiers.v1.task import Task
from verifiers.v1.types import content_text

logger = logging.getLogger(__name__)

STEP = "the seed prompt's val pass"


def run_seed_pass(adapter: GEPAAdapter, val: Sequence[Task], minibatch: int) -> list[Task]:
    """Measure the seed prompt on `val`, hand the scores to the adapter, and return the val tasks
    that are left. Raises `Fault` where too many of them can't be measured."""
    rollouts, unmeasured, prompt = adapter.rollouts, adapter.unmeasured, adapter.seed_pass.prompt
    dropped = rollouts.replay.decisions.dropped
    tasks = [task for task in val if rollouts.task_hash(task) not in dropped]
    for task in val:
        if cause := dropped.get(rollouts.task_hash(task)):
            unmeasured.note_drop(task_idx(task), cause)
    # Task by task, then again: the first rollouts are of different tasks.
    keep = adapter.reads("val")
    jobs = [Job(prompt, task, "val", keep=keep) for _ in range(adapter.repeats) for task in tasks]
    resumed = not rollouts.replay.used_up
    pilots = {} if resumed else _pilots(adapter, jobs, len(tasks))
    others = [job for position, job in enumerate(jobs) if position not in pilots]
    rest = iter(adapter.drive.run(rollouts.measure(others, STEP)))
    every = [pilots.get(position) or next(rest) for position in range(len(jobs))]
    measured = rollouts.with_floor(every)
    by_task = [measured[position :: len(tasks)] for position in range(len(tasks))]

    _check_answers(measured)
    lost = [mine for mine in by_task if mean_score(mine) is None]
    if lost:
        gone = len(lost) + len(val) - len(tasks)
        unmeasured.check_share(gone, len(val), lost[0][0].cause)
    scores: dict[int, float] = {}
    kept: list[list[Measurement]] = []
    for task, mine in zip(tasks, by_task, strict=True):
        score = mean_score(mine)
        if score is None:
            unmeasured.drop(rollouts.task_hash(task), task_idx(task), mine[0].cause)
            continue
        unmeasured.give_up("optimize", prompt, rollouts.task_hash(task), mine)
        scores[task_idx(task)] = score
        kept.append(mine)
        adapter.seed_pass.tasks[task_idx(task)] = ",".join(m.episode_id for m in mine), score
    unmeasured.start(scores)
    if unmeasured.frontier is not None:
        unmeasured.frontier.start(prompt, list(scores), kept)
    _warn_of_blindness(adapter, minibatch, list(scores.values()))
    return [task for task in tasks if task_idx(task) in scores]


def _check_answers(measured: list[Measurement]) -> None:
    """Raise `Fault` where no rollout of the pass got an answer of the model: each may be a
    measurement (a prompt too long, refused by a filter), all of them are a wrong setting."""
    answered = [m for m in measured if m.score is not None]
    if answered and all(measurement.cause for measurement in answered):
        raise Fault(
            f"the model answered none of the {len(answered)} rollouts of the seed prompt: "
            f"{answered[0].cause}"
        )


def _warn_of_blindness(adapter: GEPAAdapter, minibatch: int, scores: list[float]) -> None:
    """Warn where the search can hardly tell a better prompt from a worse one."""
    values = set(scores)
    if len(values) == 1 and len(scores) > 1:
        adapter.unmeasured.warn(
            f"the seed prompt scores {scores[0]:g} on every val task: if that is not what it is "
            "worth, look at the reward; a graded one guides the search better"
        )
    if minibatch == 1 and len(values) <= 2:
        adapter.unmeasured.warn(
            "a minibatch of 1 with a reward of two values accepts by luck: raise "
            "--reflection-minibatch-size"
        )


def _pilots(adapter: GEPAAdapter, jobs: list[Job], tasks: int) -> dict[int, Measurement]:
    """The first rollouts, one by one, up to the first that is measured, by position. One that is
    refused before anything was answered is asked again with the others."""
    measured: dict[int, Measurement] = {}
    refused: list[Measurement] = []
    for position, job in enumerate(jobs):
        seen = replace(job, keep=True)
        (measurement,) = adapter.drive.run(adapter.rollouts.measure([seen], STEP))
        if measurement.refused:
            adapter.rollouts.forget(seen)
            refused.append(measurement)
            continue
        measured[position] = measurement
        if measurement.episode_id:
            _check_arrival(job, measurement)
            measured[position] = measurement if job.keep else replace(measurement, source=None)
            return measured
        adapter.unmeasured.check_share(len(measured), tasks, measurement.cause)
    if refused:
        raise Fault(f"the endpoint refused every rollout of {STEP}: {refused[-1].cause}")
    return measured


def _check_arrival(job: Job, measurement: Measurement) -> None:
    """Raise `Fault` where the prompt is in no message that the model was sent: every candidate
    would score the same."""
    wanted = " ".join(job.prompt.split())
    episode = measurement.episode()
    sent = [
        content_text(node.message.content)
        for trace in episode.traces
        for node in trace.nodes
        if node.message.role != "assistant"
    ]
    if sent and not any(wanted in " ".join(text.split()) for text in sent):
        harness = episode.traces[0].agent.config.harness
        raise Fault(
            f"the harness {harness.id if harness else '?'!r} did not hand the system prompt on to "
            "the model, so no prompt could make a difference: choose another harness"
        )
