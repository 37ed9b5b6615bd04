"""`report.html`: a run for people, in one file that fetches nothing and runs nothing.

What models, tasksets and providers wrote is on this page, so nothing of it may act: jinja2 escapes,
every value passes `literal`, there is no script, and the page's own policy forbids any.
"""

import json
import logging
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from verifiers.v1.gepa.prepare.rundir import write_json
from verifiers.v1.gepa.record.files import REPORT_FILE, RESULT_FILE
from verifiers.v1.gepa.report.data import BROKEN, Cost, DamagedRun, Result, RunData, read_run
from verifiers.v1.gepa.report.episodes import by_difference, differing_pairs, failures
from verifiers.v1.gepa.report.outcome import Outcome, usd_text
from verifiers.v1.gepa.report.plots import score_plots
from verifiers.v1.gepa.report.verdict import verdict
from verifiers.v1.gepa.report.views import Attempt, Views, curve_of
from verifiers.v1.utils.literal import literal
from verifiers.v1.utils.texts import shorten, write_text

logger = logging.getLogger(__name__)

TEMPLATES = Path(__file__).with_name("templates")

SECTIONS = {
    "verdict": "Verdict",
    "scores": "Scores",
    "tree": "Tree",
    "diff": "Diff",
    "candidates": "Prompts",
    "frontier": "Frontier",
    "test": "Test",
    "proposals": "Proposals",
    "failures": "Failures",
    "spend": "Spend",
    "config": "Config",
    "commands": "Commands",
    "warnings": "Warnings",
}
"""The sections of the page, in order: their ids and what the list at its top calls them."""

DASH = "\u2013"
"""Stands where there is no value."""

SETTINGS = (
    ("taskset", "taskset.id"),
    ("student", "model"),
    ("harness", "agent.harness.id"),
    ("teacher", "reflection_model"),
    ("guidance", "reflection_guidance"),
    ("seed", "seed"),
    ("budget in rollouts", "max_total_rollouts"),
    ("train, val and test tasks", "num_train num_val num_test"),
    ("minibatch", "reflection_minibatch_size"),
    ("rollouts per task", "rollouts_per_task"),
    ("finalists", "num_finalists"),
    ("rollouts at once", "max_concurrent"),
)
"""What the table of the config shows: names, and where in the config they are."""


SETTING_CHARS = 1_000
"""How much of a setting the table shows; the whole config is below it."""


def write_report(run_dir: Path, output: Path | None = None) -> Path:
    """Write the report of the run in `run_dir`, there or to `output`; its path. Raises
    `DamagedRun` where the directory holds no run that can be read, `OSError` from the disk."""
    path = output or run_dir / REPORT_FILE
    page = render_report(read_run(run_dir))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def add_report(outcome: Outcome) -> Outcome:
    """Write the report of a run whose result is written, and note in that that it is there, or why
    it is not: the run itself has ended, and no page changes how."""
    if outcome.run_dir is None:
        return outcome
    if problem := try_report(outcome.run_dir):
        warnings = [*outcome.warnings, problem]
        added: dict[str, Any] = {"warnings": warnings}
    else:
        warnings = outcome.warnings
        artifacts = outcome.result["artifacts"]
        added = {"artifacts": {**artifacts, "report": str(outcome.run_dir / REPORT_FILE)}}
    result = {**outcome.result, **added}
    try:
        write_json(outcome.run_dir / RESULT_FILE, result)
    except OSError as error:
        logger.warning("%s stays without a word on %s: %s", RESULT_FILE, REPORT_FILE, error)
        return outcome
    return replace(outcome, warnings=warnings, result=result)


def try_report(run_dir: Path) -> str | None:
    """Write the report of a run; why it could not be, in a sentence that says what to do."""
    try:
        write_report(run_dir)
    except Exception as error:
        command = shlex.join(["gepa-report", str(run_dir)])
        logger.debug("the report could not be written", exc_info=True)
        return f"{REPORT_FILE} could not be written ({error!r}): try again with {command}"
    return None


def render_report(data: RunData) -> str:
    """The page. The same run gives the same bytes. Raises `DamagedRun` where a file holds something
    else than runs write."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=literal,
    )
    environment.filters["score"] = score
    template = environment.get_template("report.html.j2")
    try:
        return template.render(_context(data))
    except (*BROKEN, IndexError, UndefinedError) as error:
        file = data.run_dir / RESULT_FILE
        raise DamagedRun(f"{file} or another file holds what no run writes: {error!r}") from error


def score(value: float | None) -> str:
    """A score for a table; a dash where there is none."""
    return DASH if value is None else f"{value:.4g}"


def _context(data: RunData) -> dict[str, Any]:
    views, result = Views(data), data.result
    curve = curve_of(views)
    is_changed = views.deployed != 0 and views.deployed < len(data.candidates)
    change = None
    if is_changed:
        change = views.change(data.candidates[0], data.candidates[views.deployed])
    better, worse = differing_pairs(views)
    tasks = by_difference(data)
    widest = max((abs(task.deployed - task.baseline) for task in tasks), default=0) or 1
    differences = [task.deployed - task.baseline for task in tasks]
    config = json.dumps(data.config, indent=2, ensure_ascii=False) if data.config else ""
    return {
        "sections": SECTIONS.items(),
        "title": _title(data),
        "subtitle": _subtitle(data),
        "verdict": verdict(data),
        "hints": [hint.get("text", "") for hint in result.hints] if result else [],
        "interval": _interval(result),
        "figures": _figures(data, views),
        "plots": {name: Markup(svg) for name, svg in score_plots(curve, views.deployed).items()},
        "curve": curve,
        "is_decided": views.is_decided,
        "has_proposals": data.proposals is not None,
        "tree": views.tree(),
        "deployed_change": change,
        "deployed_name": views.name(views.deployed),
        "seed_text": views.text(data.candidates[0])
        if data.candidates and views.deployed == 0
        else None,
        "candidates": _candidates(views),
        "frontier": views.frontier(),
        "strip": [
            ("up" if d > 0 else "down" if d < 0 else "same", round(100 * abs(d) / widest))
            for d in differences
        ],
        "counts": {
            "better": sum(d > 0 for d in differences),
            "same": differences.count(0),
            "worse": sum(d < 0 for d in differences),
        },
        "better": better,
        "worse": worse,
        "attempts": [_attempt(views, attempt) for attempt in views.attempts()],
        "failures": failures(data),
        "tables": _tables(result) if result else [],
        "has_cost": result is not None and result.cost is not None,
        "config": views.text(config) if config else None,
        "settings": _settings(data.config or {}),
        "commands": _commands(data),
        "warnings": [*(result.warnings if result else []), *data.notes],
        "run_dir": data.run_dir,
        "versions": ", ".join(f"{k} {v}" for k, v in result.versions.items()) if result else "",
    }


def _title(data: RunData) -> str:
    cell = data.result.cell if data.result else {}
    taskset = cell.get("taskset") or _setting(data.config or {}, "taskset.id")
    return str(taskset or data.run_dir.name)


def _subtitle(data: RunData) -> str:
    cell, config = data.result.cell if data.result else {}, data.config or {}
    student = cell.get("model") or config.get("model")
    teacher = (data.result.teacher if data.result else "") or config.get("reflection_model")
    seed = data.result.seed if data.result else config.get("seed")
    parts = [
        f"student {student}" if student else "",
        f"teacher {teacher}" if teacher else "",
        f"seed {seed}" if seed is not None else "",
        data.run_dir.resolve().name,
    ]
    return " · ".join(filter(None, parts))


@dataclass(frozen=True)
class Interval:
    """The picture of an interval: positions and width in percent of its place."""

    delta: float
    zero: float
    point: float
    left: float
    width: float


def _interval(result: Result | None) -> Interval | None:
    if result is None or result.ci95 is None or result.delta_pp is None:
        return None
    low, high = result.ci95
    start, end = min(low, result.delta_pp, 0), max(high, result.delta_pp, 0)
    room = (end - start or 1) / 8

    def place(value: float) -> float:
        return round(100 * (value - start + room) / (end - start + 2 * room), 2)

    left = place(low)
    return Interval(
        result.delta_pp, place(0), place(result.delta_pp), left, round(place(high) - left, 2)
    )


def _figures(data: RunData, views: Views) -> list[tuple[str, str, str]]:
    """Name, value and remark of what stands below the verdict."""
    result, means = data.result, views.val_means
    figures = []
    if result and result.baseline_mean is not None:
        figures.append(("seed prompt", score(result.baseline_mean), "mean on test"))
        figures.append(("deployed prompt", score(result.deployed_mean), "mean on test"))
    if result and result.ci95 and result.delta_pp is not None:
        low, high = result.ci95
        figures.append(
            ("difference", f"{result.delta_pp:+.1f}", f"95 %: {low:+.1f} to {high:+.1f}")
        )
    if result and result.p_value is not None:
        figures.append(("p-value", f"{result.p_value:.2g}", "paired permutation"))
    if means:
        best = max((mean for mean in means if mean is not None), default=None)
        figures.append(("best val mean", score(best), f"seed prompt {score(means[0])}"))
    if result:
        spent = result.rollouts
        figures.append(
            ("rollouts", str(spent.get("charged")), f"charged, of {spent.get('budget')}")
        )
        if tried := result.proposals.get("tried"):
            figures.append(
                ("proposals", str(tried), f"{result.proposals.get('accepted')} accepted")
            )
    return figures


def _candidates(views: Views) -> list[dict[str, Any]]:
    """Every candidate with its text and the diff against its parent, in order."""
    texts = views.data.candidates
    listed = sorted(views.tree(), key=lambda one: one.index)
    return [
        {
            **asdict(one),
            "parents_named": ", ".join(map(views.name, one.parents)),
            "change": views.change(texts[one.parents[0]], texts[one.index])
            if one.parents
            else None,
            "text": views.text(texts[one.index]),
        }
        for one in listed
    ]


def _attempt(views: Views, attempt: Attempt) -> dict[str, Any]:
    """A proposal for the page, with the facts that have no column."""
    proposal = attempt.proposal
    facts = [("iteration", str(proposal.iteration))]
    if proposal.rollouts:
        facts.append(("rollouts", str(proposal.rollouts)))
    if tokens := proposal.teacher_tokens:
        counts = ", ".join(f"{value} {name}" for name, value in tokens.items())
        facts.append(("teacher's tokens", counts))
    if proposal.chars is not None:
        was = f", the parent's {proposal.parent_chars}" if proposal.parent_chars else ""
        facts.append(("characters", f"{proposal.chars}{was}"))
    if proposal.minibatch and proposal.scores_before:
        after = proposal.scores_after or [None] * len(proposal.minibatch)
        rows = zip(proposal.minibatch, proposal.scores_before, after, strict=False)
        text = ", ".join(f"{task}: {score(one)} → {score(other)}" for task, one, other in rows)
        facts.append(("score by train task", text))
    return {
        **vars(attempt),
        "parents_named": ", ".join(map(views.name, proposal.parents)),
        "facts": facts,
    }


def _tables(result: Result) -> list[tuple[list[list[str]], list[str]]]:
    """Rows and heads of the tables of what was spent."""
    counts = {k: v for k, v in result.rollouts.items() if not isinstance(v, dict)}
    uncharged = result.rollouts.get("uncharged") or {}
    counts |= {f"{phase}, uncharged": count for phase, count in uncharged.items()}
    tables = [([[name, str(count)] for name, count in counts.items()], ["rollouts", ""])]
    if result.proposals:
        rows = [[name, str(count)] for name, count in result.proposals.items()]
        tables.append((rows, ["proposals", ""]))
    if result.cost is not None:
        tables.append(_cost_table(result.cost))
    elif result.tokens:
        rows = [[role, *_counts(used, "input", "output")] for role, used in result.tokens.items()]
        tables.append((rows, ["tokens", "input", "output"]))
    if result.endpoints:
        rows = [
            [str(e.get(key, DASH)) for key in ("url", "attempts", "failed")]
            for e in result.endpoints
        ]
        tables.append((rows, ["endpoint", "attempts", "failed"]))
    return tables


def _cost_table(cost: Cost) -> tuple[list[list[str]], list[str]]:
    """Tokens and money by role; what is unknown says so, with the reason."""
    rows = [
        [
            role,
            *_counts(used, "input", "cached_input", "output"),
            usd_text(used.get("usd")),
            used.get("source") or used.get("reason") or DASH,
        ]
        for role, used in cost.roles.items()
    ]
    rows.append(["all", DASH, DASH, DASH, usd_text(cost.usd), cost.reason or ""])
    return rows, ["tokens", "input", "of it cached", "output", "cost", "price"]


def _counts(used: dict[str, Any], *names: str) -> list[str]:
    return [f"{used[name]:,}" if used.get(name) is not None else DASH for name in names]


def _settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, paths in SETTINGS:
        values = [_setting(config, path) for path in paths.split()]
        if any(value is not None for value in values):
            shown = (DASH if v is None else shorten(str(v), SETTING_CHARS) for v in values)
            rows.append((name, ", ".join(shown)))
    return rows


def _setting(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _commands(data: RunData) -> list[tuple[str, str]]:
    given = data.result.commands if data.result else {}
    commands = [
        ("Evaluate the deployed prompt", given.get("vf_eval")),
        ("Go on with the run", given.get("resume")),
        ("Write this page again", shlex.join(["gepa-report", str(data.run_dir)])),
    ]
    return [(what, str(command)) for what, command in commands if command]
