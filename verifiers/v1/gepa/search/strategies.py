"""How the search draws its proposals and which of them it keeps: gepa's strategies, held to what
the budget pays for.

An iteration draws up to `proposals_per_iteration` pairs of a parent and a minibatch; what wins its
minibatch gets a val pass. Near the end of the budget neither may all fit. Then fewer pairs are
drawn, and the val passes go to the largest gains. How many depends on the budget, which a resume
may raise, so it goes into the record: the resumed search must draw what the first one drew.
"""

import math
import random
from dataclasses import dataclass

from gepa.core.data_loader import DataLoader
from gepa.core.state import GEPAState
from gepa.proposer.base import CandidateProposal, SubsampleEvaluation
from gepa.proposer.reflective_mutation.base import CandidateSelector
from gepa.strategies.acceptance import AcceptanceCriterion
from gepa.strategies.batch_sampler import BatchSampler, EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import (
    CurrentBestCandidateSelector,
    EpsilonGreedyCandidateSelector,
    ParetoCandidateSelector,
    TopKParetoCandidateSelector,
)
from gepa.strategies.proposal_sampling import ProposalTask

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, minibatch_size, proposal_cost
from verifiers.v1.gepa.record.files import COMPONENT
from verifiers.v1.gepa.reflection import Reflection
from verifiers.v1.gepa.rollouts.measurements import Measurement, charged, known_scores, mean_score
from verifiers.v1.gepa.teacher.attempts import Attempts

State = GEPAState[str, int]
Proposal = CandidateProposal[int]

EPSILON = 0.1
"""Share of draws that `epsilon_greedy` makes among all candidates alike; gepa's own."""

TOP_K = 5
"""Candidates, the best by val mean, that `top_k_pareto` draws from; gepa's own."""


@dataclass(frozen=True)
class Strategies:
    """What `gepa.optimize` is told about drawing and keeping proposals."""

    selector: CandidateSelector
    minibatches: "Minibatches"
    sampling: "Sampling"
    selection: "Selection"


def build_strategies(
    config: GEPAConfig,
    adapter: GEPAAdapter,
    reflection: Reflection,
    split: Split,
) -> Strategies:
    """The strategies of a run."""
    rng = random.Random(config.seed)  # one for both, as gepa has it
    selectors: dict[str, CandidateSelector] = {
        "pareto": ParetoCandidateSelector(rng),
        "current_best": CurrentBestCandidateSelector(),
        "epsilon_greedy": EpsilonGreedyCandidateSelector(EPSILON, rng),
        "top_k_pareto": TopKParetoCandidateSelector(TOP_K, rng),
    }
    narrowing = Narrowing(adapter)
    return Strategies(
        selectors[config.candidate_selection],
        Minibatches(minibatch_size(config, split), rng),
        Sampling(config, adapter, reflection, narrowing, proposal_cost(config, split)),
        Selection(config, adapter, reflection.requests.attempts, narrowing),
    )


class Minibatches(EpochShuffledBatchSampler[int, int]):
    """gepa's sampler, a minibatch further at every draw. Its own goes by the iteration, so that
    several draws in one iteration would be drawn again in the next."""

    def __init__(self, minibatch: int, rng: random.Random) -> None:
        super().__init__(minibatch, rng)
        self._drawn = 0

    def next_minibatch_ids(self, loader: DataLoader[int, int], state: State) -> list[int]:
        position = self._drawn * self.minibatch_size
        self._drawn += 1
        epoch = position // len(self.shuffled_ids) if self.shuffled_ids else 0
        if epoch > self.epoch:
            self.epoch = epoch
            self._update_shuffled(loader)
        start = position % len(self.shuffled_ids)
        return self.shuffled_ids[start : start + self.minibatch_size]


class Narrowing:
    """How many of something an iteration does, where the budget may not pay for all."""

    def __init__(self, adapter: GEPAAdapter) -> None:
        self._rollouts = adapter.rollouts

    def number(self, iteration: int, what: str, wanted: int, affordable: int) -> int:
        """`wanted`, or as many of them as are affordable. What the record says comes first."""
        recorded = self._rollouts.replay.decisions.narrowed.get((iteration, what))
        if recorded is not None:
            return min(recorded, wanted)
        if affordable >= wanted or not self._rollouts.replay.used_up:
            return wanted
        number = max(affordable, 0)
        if number:
            self._rollouts.journal.decision(
                {"decision": "narrowed", "iteration": iteration, "what": what, "number": number}
            )
        return number


class Sampling:
    """gepa's sampling strategy: the pairs of a parent and a minibatch of one iteration."""

    def __init__(
        self,
        config: GEPAConfig,
        adapter: GEPAAdapter,
        reflection: Reflection,
        narrowing: Narrowing,
        cost: int,
    ) -> None:
        self._number = config.proposals_per_iteration
        self._per_parent = self._number // (config.parents_per_iteration or self._number)
        self._max_reflections = config.max_reflections
        self._adapter = adapter
        self._budget = adapter.rollouts.budget
        self._reflection = reflection
        self._narrowing = narrowing
        self._cost = cost
        """Rollouts of a proposal that is rejected."""

    def sample_tasks(
        self,
        state: State,
        candidate_selector: CandidateSelector,
        batch_sampler: BatchSampler[int, int],
        trainset: DataLoader[int, int],
    ) -> list[ProposalTask[int, int]]:
        # Without a val pass none of them could be kept. One is made all the same: if it wins, the
        # run can name it as what a larger budget would look at first.
        affordable = (self._budget.left - self._adapter.val_cost) // self._cost
        if self._max_reflections is not None:
            calls = self._max_reflections - self._reflection.replies.counts["tried"]
            affordable = min(affordable, calls)
        number = self._narrowing.number(state.i, "proposals", self._number, max(affordable, 1))
        tasks: list[ProposalTask[int, int]] = []
        parent = 0
        for position in range(number):
            if position % self._per_parent == 0:
                parent = candidate_selector.select_candidate_idx(state)
            ids = batch_sampler.next_minibatch_ids(trainset, state)
            candidate = state.program_candidates[parent]
            tasks.append(ProposalTask(parent, candidate, ids, trainset.fetch(ids)))
        return tasks


class Selection:
    """gepa's selection strategy: of an iteration's proposals, those that get a val pass. Every
    other one is noted with the reason."""

    def __init__(
        self,
        config: GEPAConfig,
        adapter: GEPAAdapter,
        attempts: Attempts,
        narrowing: Narrowing,
    ) -> None:
        self._attempts = attempts
        self._most = config.accepted_per_iteration
        self._early = config.stop_val_early
        self._perfect = config.perfect_score
        self._adapter = adapter
        self._history = adapter.history
        self._narrowing = narrowing

    def select(
        self,
        proposals: list[Proposal],
        state: State,
        acceptance_criterion: AcceptanceCriterion,
    ) -> list[Proposal]:
        """The proposals that get a val pass, in their order. Where not even one pass fits into the
        budget it is all that won: gepa then asks for them and the budget ends the search."""
        for proposal in proposals:
            scores, own = proposal.subsample_scores_after or [], _trajectories(proposal.eval_after)
            self._history.measured(
                _text(proposal), known_scores(scores, own), charged(own), _gain(proposal) > 0
            )
        won = []
        for proposal in proposals:
            if acceptance_criterion.should_accept(proposal, state):
                won.append(proposal)
            else:
                reason = _lost(proposal)
                self._history.rejected(_text(proposal), reason)
                # The teacher learns of no other rejection: those were better on the minibatch.
                parents = [state.program_candidates[i] for i in proposal.parent_program_ids]
                self._attempts.rejected(parents[0][COMPONENT], _text(proposal), reason)
        best = sorted(won, key=lambda proposal: -_gain(proposal))  # equals stay in their order
        if self._most is not None:
            for proposal in best[self._most :]:
                several = f"one of the {self._most} largest gains"
                most = "the largest gain" if self._most == 1 else several
                reason = f"{_lost(proposal)}, not {most} of its iteration"
                self._history.rejected(_text(proposal), reason)
            best = best[: self._most]
        best = self._affordable(best, state.i)
        if self._early and best:
            best = self._hopeful(best, state)
        chosen = {id(proposal) for proposal in best}
        return [proposal for proposal in won if id(proposal) in chosen]

    def _affordable(self, best: list[Proposal], iteration: int) -> list[Proposal]:
        """Those of `best`, which starts with the largest gain, whose val passes the budget pays."""
        cost = self._adapter.val_cost
        affordable = self._adapter.rollouts.budget.left // cost if cost else len(best)
        number = self._narrowing.number(iteration, "val passes", len(best), affordable)
        if number == 0:
            return best
        for proposal in best[number:]:
            self._history.unvalidated(_text(proposal))
        return best[:number]

    def _hopeful(self, best: list[Proposal], state: State) -> list[Proposal]:
        """Those that can still reach their parent's val mean after the first half of the val pass,
        even with the perfect score on all of the rest."""
        assert self._perfect is not None
        budget = self._adapter.rollouts.budget
        if (
            budget.left < self._adapter.val_cost * len(best)
            and self._adapter.rollouts.replay.used_up
        ):
            return best  # the budget ends the search at the whole pass
        halves = self._adapter.begin_val([_text(proposal) for proposal in best])
        hopeful = []
        for proposal, half in zip(best, halves, strict=True):
            total = len(state.prog_candidate_val_subscores[0])
            reachable = (sum(half) + self._perfect * (total - len(half))) / total
            parent = max(state.program_full_scores_val_set[i] for i in proposal.parent_program_ids)
            if reachable < parent and not math.isclose(reachable, parent):
                self._adapter.stop_val(_text(proposal))
                reason = (
                    f"stopped in its val pass: it could reach a mean of {reachable:.4f}, its "
                    f"parent's is {parent:.4f}"
                )
                self._history.rejected(_text(proposal), reason)
            else:
                hopeful.append(proposal)
        return hopeful


def _text(proposal: Proposal) -> str:
    return proposal.candidate[COMPONENT]


def _gain(proposal: Proposal) -> float:
    before, after = proposal.subsample_scores_before, proposal.subsample_scores_after
    return sum(after or []) - sum(before or [])


def _lost(proposal: Proposal) -> str:
    before, after = proposal.subsample_scores_before, proposal.subsample_scores_after
    parents, own = _trajectories(proposal.eval_before), _trajectories(proposal.eval_after)
    pairs = zip(parents, own, strict=True)
    comparable = [mine for before_it, mine in pairs if mean_score(before_it) is not None]
    run = sum(map(bool, comparable))
    if run < len(comparable):
        return f"stopped after {run} of {len(comparable)} tasks: it could not win any more"
    return f"its minibatch sum is {sum(after or []):g}, its parent's {sum(before or []):g}"


def _trajectories(evaluation: SubsampleEvaluation | None) -> list[list[Measurement]]:
    return (evaluation.trajectories if evaluation else None) or []
