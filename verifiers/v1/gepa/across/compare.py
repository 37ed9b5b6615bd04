"""Two runs side by side: where their configs differ, at which step they parted, what each came to.

Two runs are equal if they are the same search: the same requests with the same answers in every
step, whatever the order in which rollouts finished, how often a call was tried again, and how many
processes it took. So a run that was killed and resumed equals the one that never was.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from verifiers.v1.gepa.across.recorded import Pass, RecordedRun, Step
from verifiers.v1.gepa.dataset import NAMES
from verifiers.v1.gepa.faults.privacy import MARK, SECRET_NAME
from verifiers.v1.gepa.prepare.identity import flat
from verifiers.v1.gepa.record.files import PROMPT_FILE
from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.utils.texts import shorten

NAMING = frozenset({"run.name", "run.dir", "output_dir"})
"""What only says where a run is kept."""

FIGURES = (
    "status",
    "finish_reason",
    "seed_val_mean",
    "best_val_mean",
    "deployed_candidate",
    "baseline_mean",
    "deployed_mean",
    "delta_pp",
    "ci95",
    "p_value",
    "improved",
    "rollouts",
    "proposals",
    "tokens",
    "cost",
)
"""Keys of `result.json` that say what a run came to and what it took."""

MOST_SHOWN = 80
"""Characters of a text that are shown of a difference."""

UNKNOWN = "not on record"
PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")


@dataclass(frozen=True)
class Difference:
    """Where two runs part, and what each has there."""

    step: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.step}: {self.a} against {self.b}"


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side; pairs are of the first and the second."""

    config: dict[str, tuple[Any, Any]]
    """Settings that differ, by name. Those that name the run don't count."""
    first_difference: Difference | None
    """The first step at which the two part, None where they are the same search."""
    figures: dict[str, tuple[Any, Any]]
    """What `result.json` says of both."""
    prompt_diff: str
    """Unified diff of the deployed prompts, empty where they are equal."""

    @property
    def equal(self) -> bool:
        return self.first_difference is None

    def as_json(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


def compare_runs(a: RecordedRun, b: RecordedRun) -> Comparison:
    """Compare two runs."""
    return Comparison(
        config=_config_difference(a.config, b.config),
        first_difference=next(_differences(a, b), None),
        figures=_figures(a.result, b.result),
        prompt_diff=_prompt_diff(a, b),
    )


def _config_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name not in NAMING]
    return {name: (_public(name, a.get(name)), _public(name, b.get(name))) for name in names}


def _public(name: str, value: Any) -> Any:
    """A setting without what may be a secret in it (a run refuses those, a file may hold one)."""
    if isinstance(value, dict):
        return {key: _public(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_public(name, item) for item in value]
    if not isinstance(value, str):
        return value
    last = name.rpartition(".")[2]
    if SECRET_NAME.search(last) and not last.endswith("_var"):
        return MARK
    return PASSWORD.sub(MARK, value)


def _figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    flat_a, flat_b = (
        dict(flat({key: result[key] for key in FIGURES if key in result})) for result in (a, b)
    )
    return {name: (flat_a.get(name), flat_b.get(name)) for name in {**flat_a, **flat_b}}


def _prompt_diff(a: RecordedRun, b: RecordedRun) -> str:
    lines = difflib.unified_diff(
        (a.prompt or "").split("\n"),
        (b.prompt or "").split("\n"),
        str(a.path / PROMPT_FILE),
        str(b.path / PROMPT_FILE),
        lineterm="",
    )
    return "\n".join(lines)


def _differences(a: RecordedRun, b: RecordedRun) -> Iterator[Difference]:
    """Every difference, in the order of the steps of a run."""
    for name in NAMES:
        mine, other = list(a.tasks[name].values()), list(b.tasks[name].values())
        if list(a.tasks[name]) != list(b.tasks[name]):
            same = mine == other  # by position in the taskset, but with other content
            suffix = " with other content" if same else ""
            yield Difference(f"the {name} tasks", _tasks(mine), _tasks(other) + suffix)
    yield from _texts("the seed prompt", a.seed_prompt, b.seed_prompt)
    seed = prompt_digest(a.seed_prompt or "")
    yield from _pass(a, b, ("optimize", "val", seed), "val pass of the seed prompt")
    for number, pair in enumerate(zip_longest(a.steps, b.steps), 1):
        yield from _step(a, b, number, *pair)
    names = {digest: index for index, digest in enumerate(a.digests)}
    for key in sorted({**a.scores, **b.scores}, key=lambda key: _order(key, names)):
        prompt = _prompt(names[key[2]]) if key[2] in names else f"prompt {key[2][:12]}"
        yield from _pass(a, b, key, f"{key[0]} phase, {prompt} on {key[1]}")
    yield from _texts("the deployed prompt", a.prompt, b.prompt)


def _order(key: Pass, names: Mapping[str, int]) -> tuple[int, int, str, str]:
    phase, split, digest = key
    return (
        ("optimize", "validate", "test").index(phase),
        names.get(digest, len(names)),
        digest,
        split,
    )


def _step(
    a: RecordedRun, b: RecordedRun, number: int, mine: Step | None, other: Step | None
) -> Iterator[Difference]:
    """Where the two runs' replies of this number differ, and what was made of them."""
    if mine is None or other is None:
        known = mine or other
        assert known is not None
        at = known.proposal
        step = f"teacher call {number}" if at is None else f"iteration {at.iteration}"
        yield Difference(step, _ending(a, mine), _ending(b, other))
        return
    made, theirs = mine.proposal, other.proposal
    step = f"teacher call {number}"
    if made is not None and theirs is not None:
        step = f"iteration {made.iteration}"
        if made.iteration != theirs.iteration:
            first = min(made.iteration, theirs.iteration)
            has = [f"iteration {one.iteration}" for one in (made, theirs)]
            yield Difference(f"iteration {first}, the next reply of the teacher", *has)
        else:
            if mine.position != 1:
                step += f", proposal {mine.position}"
            yield from _drawn(step, made, theirs)
    if mine.request != other.request:
        has = [f"request {one.request[:12]}" for one in (mine, other)]
        yield Difference(f"{step}, what the teacher was shown", *has)
    if (made is None) != (theirs is None):
        decisions = (UNKNOWN if one is None else one.decision for one in (made, theirs))
        yield Difference(f"{step}, what became of the proposal", *decisions)
    texts = (None if one is None else one.text for one in (made, theirs))
    yield from _texts(f"{step}, the proposed prompt", *texts)
    if mine.reply != other.reply:
        has = [f"reply {one.reply[:12]}" for one in (mine, other)]
        yield Difference(f"{step}, what the teacher said around it", *has)
    if made is not None and theirs is not None:
        what = f"{step}, scores of the proposal"
        yield from _scored(what, made, made.scores_after, theirs.scores_after)
        if made.decision != theirs.decision:
            yield Difference(f"{step}, the decision", made.decision, theirs.decision)
        if made.candidate is not None and made.text is not None:
            key = ("optimize", "val", prompt_digest(made.text))
            yield from _pass(a, b, key, f"{step}, val pass of {_prompt(made.candidate)}")


def _drawn(step: str, mine: Proposal, other: Proposal) -> Iterator[Difference]:
    """Parent and minibatch of a proposal."""
    parent, theirs = (_prompt(next(iter(one.parents), None)) for one in (mine, other))
    if parent != theirs:
        yield Difference(f"{step}, the parent", parent, theirs)
    if mine.minibatch != other.minibatch:
        tasks = [_tasks(one.minibatch) for one in (mine, other)]
        yield Difference(f"{step}, minibatch of {parent}", *tasks)
    before = (one.scores_before for one in (mine, other))
    yield from _scored(f"{step}, scores of {parent}", mine, *before)


def _scored(
    what: str,
    proposal: Proposal,
    a: Sequence[float | None] | None,
    b: Sequence[float | None] | None,
) -> Iterator[Difference]:
    """The first task of a minibatch on which the scores differ."""
    for idx, mine, other in zip_longest(proposal.minibatch, a or [], b or []):
        if mine != other:
            yield Difference(f"{what}, task {idx}", _score(mine), _score(other))
            return


def _pass(a: RecordedRun, b: RecordedRun, key: Pass, what: str) -> Iterator[Difference]:
    """The first task of a pass on which the two runs' rollouts differ."""
    mine, other = a.scores.get(key, {}), b.scores.get(key, {})
    if mine == other:
        return
    indices = a.tasks.get(key[1], {})
    places = sorted({**mine, **other}, key=lambda at: (indices.get(at[0], len(indices)), at))
    at = next(at for at in places if mine.get(at, UNKNOWN) != other.get(at, UNKNOWN))
    pair = (_score(rollouts.get(at, UNKNOWN)) for rollouts in (mine, other))
    yield Difference(f"{what}, task {indices.get(at[0], at[0][:12])}", *pair)


def _texts(what: str, a: str | None, b: str | None) -> Iterator[Difference]:
    """The first line in which two texts differ."""
    if a == b:
        return
    if a is None or b is None:
        yield Difference(what, *("none" if text is None else _quoted(text) for text in (a, b)))
        return
    pairs = zip_longest(a.split("\n"), b.split("\n"))
    mine, other = next(pair for pair in pairs if pair[0] != pair[1])
    yield Difference(
        what, *("no line" if line is None else _quoted(line) for line in (mine, other))
    )


def _ending(run: RecordedRun, step: Step | None) -> str:
    if step is not None:
        return "a proposal"
    reason = run.result.get("finish_reason")
    return f"the search has ended ({reason})" if reason else "the record ends"


def _prompt(index: int | None) -> str:
    return "the seed prompt" if index == 0 else f"prompt {index}"


def _tasks(indices: Sequence[int]) -> str:
    return f"tasks {', '.join(map(str, indices))}" if indices else "no task"


def _score(score: float | str | None) -> str:
    return f"{score:g}" if isinstance(score, float | int) else score or "none"


def _quoted(text: str) -> str:
    return repr(shorten(text, MOST_SHOWN).replace("\n", " "))
