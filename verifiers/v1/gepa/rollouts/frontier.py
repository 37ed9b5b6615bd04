"""Objective scores: the rewards and metrics of a trace, for the frontiers that are made of them.

gepa's plain frontier keeps the prompts that are best on some val task. The others also look at
*what* a prompt is good at: every reward and metric is an objective, more of it is better.
"""

import math
from collections.abc import Sequence
from typing import Any

from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.rollouts.measurements import Measurement
from verifiers.v1.utils.statistics import mean


class Frontier:
    """Every candidate's objective scores on val; `names` says which objectives count, none that all
    do."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._lowest: dict[str, float] = {}
        self._known: dict[str, dict[int, dict[str, float]]] = {}
        """Prompt -> task -> objective -> score."""
        self._retired: dict[int, dict[str, float]] = {}

    def start(
        self, seed_prompt: str, batch: Sequence[int], measured: Sequence[Sequence[Measurement]]
    ) -> None:
        """Learn the objectives from the seed prompt's val pass. Raises `Fault` where there are
        none, or not those that were asked for."""
        found = sorted({name for rollouts in measured for name in objective_scores(rollouts)})
        missing = [name for name in self._names if name not in found]
        if not found:
            raise Fault(
                "no trace of the seed prompt's val pass has a reward or metric, so there are no "
                "objectives: go on with --resume --frontier-type instance"
            )
        if missing:
            raise Fault(
                f"--objectives {' '.join(missing)}: no trace of the seed prompt's val pass has it; "
                f"there are: {', '.join(found)}; what was measured is on record: go on with "
                "--resume and others, or with another --frontier-type"
            )
        self._names = self._names or found
        self.note(seed_prompt, batch, measured)
        self._seed = self._known[seed_prompt]

    def note(
        self, prompt: str, batch: Sequence[int], measured: Sequence[Sequence[Measurement]]
    ) -> list[dict[str, float]]:
        """The objective scores of `prompt` on each task of its val pass, which are kept. Where a
        trace lacks one (the model refused to answer, say), it is 0, or the worst so far where that
        is below 0; a retired task has the seed prompt's."""
        own = [objective_scores(rollouts) for rollouts in measured]
        for name in self._names:
            values = [scores[name] for scores in own if name in scores]
            self._lowest[name] = min([self._lowest.get(name, 0.0), *values])
        self._known[prompt] = {
            idx: self._retired.get(idx)
            or {name: scores.get(name, self._lowest[name]) for name in self._names}
            for idx, scores in zip(batch, own, strict=True)
        }
        return self.scores(prompt, batch)

    def scores(self, prompt: str, batch: Sequence[int]) -> list[dict[str, float]]:
        """What was noted for `prompt`, per task of `batch`."""
        return [self._known[prompt][idx] for idx in batch]

    def retire(self, state: Any, idx: int, position: int) -> None:
        """Give every candidate the seed prompt's objective scores on a task, in gepa's `state` too,
        which names the task by its position in val."""
        scores = self._retired[idx] = self._seed[idx]
        for known in self._known.values():
            known[idx] = scores
        everyone = set(range(len(state.program_candidates)))
        pool = [self._known[text] for c in state.program_candidates for text in c.values()]
        # Added up as gepa does it, so that equal scores stay equal.
        means = [
            {name: sum(task[name] for task in own.values()) / len(own) for name in self._names}
            for own in pool
        ]
        state.prog_candidate_objective_scores[:] = means
        for name in self._names:
            best = max(own[name] for own in means)
            state.objective_pareto_front[name] = best
            state.program_at_pareto_front_objectives[name] = {
                index for index, own in enumerate(means) if own[name] == best
            }
            if (position, name) in state.pareto_front_cartesian:
                state.pareto_front_cartesian[position, name] = scores[name]
                state.program_at_pareto_front_cartesian[position, name] = everyone


def objective_scores(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The rewards and metrics of what was measured, each the mean over the traces that have it. A
    reward hides a metric of the same name."""
    values: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.source is None:
            continue
        for trace in measurement.episode().traces:
            rewards = {name: r.value for name, r in trace.rewards.items() if r is not None}
            for name, value in {**trace.metrics, **rewards}.items():
                if value is not None and math.isfinite(value):
                    values.setdefault(name, []).append(value)
    return {name: mean(list(found)) for name, found in values.items()}
