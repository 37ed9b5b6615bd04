"""The live view of a run, for a person at a terminal.

A `Snapshot` is read from the parts of the run, and drawn. It shows what is on record: a rollout is
counted once its line is written. The run itself is busy while gepa computes, so that a thread of
the console's draws; it only reads.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verifiers.v1.gepa.faults.retries import Troubles
from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.gepa.report.outcome import usd_text
from verifiers.v1.gepa.run import Run

REFRESHES = 4
"""Frames per second."""

PROPOSALS = 4
CAUSES = 3
"""How many of the last proposals, and of the commonest causes, are shown."""

CAUSE_CHARS = 200


@dataclass(frozen=True)
class Role:
    """What a role has spent."""

    name: str
    input: int
    output: int
    usd: float | None


@dataclass(frozen=True)
class Spent:
    """What all roles have spent."""

    roles: Sequence[Role]
    usd: float | None
    """None where it is unknown."""


@dataclass(frozen=True)
class Count:
    """How far something has come."""

    done: int
    total: int


@dataclass(frozen=True)
class InFlight:
    """What is under way."""

    rollouts: int
    limit: int
    """How many rollouts may be."""
    calls: int
    """Teacher calls."""


@dataclass(frozen=True)
class Found:
    """The candidates so far."""

    candidates: int
    frontier: int
    """Prompts that are best at something."""
    seed_mean: float | None
    best_mean: float | None
    """Val means of the seed prompt and of the best one."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    phase: str
    progress: Count
    """Rollouts of the phase: in the search those charged and the budget."""
    charged: Count
    """Rollouts charged, which are never more than the journal holds, and the budget."""
    in_flight: InFlight
    troubles: Troubles
    """Of rollouts and teacher calls alike, in this process."""
    found: Found
    spent: Spent
    run_dir: Path | None
    replaying: bool
    """Whether a resumed run has yet to catch up with its record, and most of this is unknown."""
    stopping: bool
    """Whether a signal has come."""


def take_snapshot(run: Run) -> Snapshot:
    """The run as it is; from any thread."""
    rollouts, progress, teacher = run.adapter.rollouts, run.progress, run.reflection.teacher
    throttle, ours = rollouts.trials.throttle, rollouts.trials.retries.troubles
    theirs = teacher.retries.troubles
    budget, batch, replay = rollouts.budget, rollouts.budget.batch, rollouts.replay
    # What an earlier process measured was spent, whether or not it has been asked for again.
    charged = Count(max(budget.charged, replay.charged), budget.total)
    searching = batch.phase == "optimize"
    spending, state = budget.spending, progress.state
    fronts = list(state.program_at_pareto_front_valset.values()) if state else []
    return Snapshot(
        phase=batch.phase,
        progress=charged if searching else Count(batch.done, batch.total),
        charged=charged,
        in_flight=InFlight(throttle.in_flight, throttle.limit, teacher.asking),
        troubles=Troubles(
            seen=Counter(ours.seen) + Counter(theirs.seen),
            waiting=Counter(ours.waiting) + Counter(theirs.waiting),
        ),
        found=Found(
            candidates=len(state.program_candidates) if state else 0,
            frontier=len(set().union(*fronts)),
            seed_mean=progress.seed_val_mean,
            best_mean=progress.best_val_mean,
        ),
        spent=Spent(
            [
                Role(name, tally.input, tally.output, spending.role_usd(name))
                for name, tally in spending.by_role.items()
            ],
            spending.usd,
        ),
        run_dir=rollouts.journal.run_dir,
        replaying=searching and not replay.used_up,
        stopping=run.adapter.drive.signum is not None,
    )


@dataclass
class Pace:
    """How fast a phase goes."""

    phase: str
    start: float
    done: int

    def seconds_left(self, now: Count) -> float | None:
        """For the rest of the phase, at the mean pace so far; None where nothing was done yet."""
        done, left = now.done - self.done, now.total - now.done
        return (time.monotonic() - self.start) / done * left if done > 0 else None


class View:
    """Draws a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._proposals: deque[str] = deque(maxlen=PROPOSALS)
        self._pace = Pace("", 0.0, 0)
        self._last: RenderableType = Text()

    def decided(self, proposal: Proposal) -> None:
        """A proposal was decided."""
        self._proposals.appendleft(f"{proposal.number} {proposal.decision}: {verdict_of(proposal)}")

    def draw(self) -> RenderableType:
        """The view as it is now; the one before where that fails, as it must never end a run."""
        # A number may change while it is read. Nothing is logged here: a thread of the console's
        # holds its lock, and another one that logs may be waiting for that with the log's.
        with contextlib.suppress(Exception):
            now = take_snapshot(self._run)
            if now.phase != self._pace.phase or now.replaying:
                self._pace = Pace(now.phase, time.monotonic(), now.progress.done)
            left = self._pace.seconds_left(now.progress)
            self._last = drawn(now, list(self._proposals), left)
        return self._last


def verdict_of(proposal: Proposal) -> str:
    """What a proposal came to, in a few words."""
    if proposal.val_mean is not None:
        return f"val mean {proposal.val_mean:.4f}"
    before, after = _sum(proposal.scores_before or [None]), _sum(proposal.scores_after or [None])
    if before is None or after is None:
        return proposal.reason
    return f"minibatch sum {before:.4g} -> {after:.4g}"


def _sum(scores: Sequence[float | None]) -> float | None:
    """None where one is missing."""
    known = [score for score in scores if score is not None]
    return sum(known) if len(known) == len(scores) else None


def drawn(now: Snapshot, proposals: Sequence[str], seconds_left: float | None) -> RenderableType:
    """A snapshot for a terminal of any width."""
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    done, total = now.progress.done, now.progress.total
    count = f"{done}/{total} rollouts"
    if seconds_left is not None and done < total:
        count += f", {_duration(seconds_left)} left"
    bar = ProgressBar(total=max(1, total), completed=done)
    head.add_row(Text(now.phase, "bold"), bar, count)
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, lines in _rows(now, proposals).items():
        for number, line in enumerate(lines):
            rows.add_row("" if number else name, Text(_printable(line)))
    if now.run_dir is not None:
        rows.add_row("run", Text(str(now.run_dir), no_wrap=False, overflow="fold"))
    return Group(head, rows)


def _rows(now: Snapshot, proposals: Sequence[str]) -> dict[str, list[str]]:
    """Heading and lines of everything that there is to say."""
    rows = {}
    if now.stopping:
        rows["stopping"] = ["finishing up, please wait (what was measured is kept)"]
    if now.replaying:
        return rows | {"resume": ["reading the record of the run"]}
    if now.phase != "optimize":
        rows["search"] = [f"{now.charged.done} of {now.charged.total} rollouts"]
    flight, troubles, found = now.in_flight, now.troubles, now.found
    calls = f", teacher calls {flight.calls}" if flight.calls else ""
    rows["in flight"] = [f"{flight.rollouts} of {flight.limit}{calls}"]
    for name, causes in {"waiting": troubles.waiting, "failures": troubles.seen}.items():
        if causes:
            common = causes.most_common(CAUSES)
            rows[name] = [f"{count} x {cause[:CAUSE_CHARS]}" for cause, count in common]
    if found.seed_mean is not None:
        best = found.seed_mean if found.best_mean is None else found.best_mean
        rows["val mean"] = [
            f"{best:.4f} best of {max(1, found.candidates)}, {found.seed_mean:.4f} seed prompt; "
            f"{found.frontier} on the frontier"
        ]
    if proposals:
        rows["proposals"] = list(proposals)
    if now.spent.roles:
        rows["tokens"] = [
            f"{role.name} {role.input:,} in, {role.output:,} out: {usd_text(role.usd)}"
            for role in now.spent.roles
        ]
        rows["cost"] = [usd_text(now.spent.usd)]
    return rows


@contextlib.contextmanager
def shown(run: Run, console: Console | None) -> Iterator[None]:
    """Show the run on `console`, if there is one, till it is over. What is logged and printed
    meanwhile appears above the view."""
    if console is None:
        yield
        return
    view = View(run)
    run.adapter.history.listeners.append(view.decided)
    run.adapter.drive.silent = True
    live = Live(get_renderable=view.draw, console=console, refresh_per_second=REFRESHES)
    live.start(refresh=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a terminal that was closed
            live.stop()
        run.adapter.drive.silent = False


def _duration(seconds: float) -> str:
    """A time for a person: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _printable(text: str) -> str:
    """`text` without what would move the cursor or colour the terminal: causes are a provider's."""
    return "".join(char if char.isprintable() else " " for char in text)
