"""What becomes of the teacher's answers: a proposal, or the reason why there is none; and when a
search ends because they are of no use."""

import logging
from collections import Counter
from dataclasses import asdict
from typing import Any

from verifiers.v1.gepa.faults.failures import MEASURED, Fault
from verifiers.v1.gepa.record.files import REFLECTIONS_FILE
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.spend.budget import SearchStopped
from verifiers.v1.gepa.teacher.client import Answer
from verifiers.v1.gepa.teacher.proposals import UNANSWERED, NoProposal, extract_prompt
from verifiers.v1.gepa.teacher.quality import Quality
from verifiers.v1.gepa.teacher.requests import Request

logger = logging.getLogger(__name__)

DUPLICATE = "the proposed text is not new in this run"

MAX_UNUSABLE = 10
"""Replies in a row that may hold no proposal before the run stops."""


class Replies:
    """Judges the answers of a run in turn. A reply becomes a proposal only if it holds a complete
    text that is new in this run (up to trailing blanks)."""

    def __init__(self, quality: Quality, url: str) -> None:
        self.quality = quality
        self.counts = Counter({"tried": 0, "duplicate": 0, "unusable": 0, "failed": 0})
        self.stop: BaseException | None = None
        """Why the run can't go on, once it can't: `Fault` or `SearchStopped`."""
        self._url = url
        self._known = {prompt_digest(quality.seed_prompt.rstrip())}
        self._unusable_in_row = 0
        self._echoes_in_row = 0

    def judge(self, answer: Answer) -> str | NoProposal:
        """The text that an answer proposes."""
        self.counts["tried"] += 1
        text = self._usable(answer)
        if isinstance(text, NoProposal):
            self._count(answer, text.reason)
        else:
            self._unusable_in_row = self._echoes_in_row = 0
        return text

    def _usable(self, answer: Answer) -> str | NoProposal:
        if answer.verdict != MEASURED:
            refused = answer.verdict.kind == "measured"  # this prompt: too long, or filtered
            who = "the teacher refused" if refused else UNANSWERED
            return NoProposal(f"{who}: {answer.verdict.cause}")
        if answer.unfit:
            return NoProposal(answer.unfit)
        text = extract_prompt(answer.text, answer.finish_reason)
        if isinstance(text, NoProposal):
            return text
        digest = prompt_digest(text.rstrip())
        if digest in self._known:
            return NoProposal(DUPLICATE)
        if unfit := self.quality.refusal(text):
            return NoProposal(f"the proposed text can't be used: {unfit}")
        self._known.add(digest)
        return text

    def _count(self, answer: Answer, reason: str) -> None:
        """Count an answer without a proposal, and decide whether the run can go on."""
        logger.info("no proposal: %s", reason)
        if answer.verdict.kind != "measured":
            self.counts["failed"] += 1
            self.stop = Fault(f"the teacher failed: {answer.verdict.cause} ({self._url})")
            return
        # The endpoint works; it is the reply that is of no use.
        echo = reason == DUPLICATE
        self.counts["duplicate" if echo else "unusable"] += 1
        self._unusable_in_row += 1
        self._echoes_in_row += echo
        if self._echoes_in_row == MAX_UNUSABLE:
            self.stop = SearchStopped(
                "teacher_echoes",
                f"{MAX_UNUSABLE} replies of the teacher in a row held a prompt that the run had "
                "already tried",
            )
        elif self._unusable_in_row == MAX_UNUSABLE:
            self.stop = SearchStopped(
                "unusable_replies",
                f"{MAX_UNUSABLE} replies of the teacher in a row held no proposal (the last: "
                f"{reason}); read {REFLECTIONS_FILE}, then start another run with another "
                "--reflection-model, a larger --reflection-sampling.max-tokens, or other "
                "--max-prompt-chars or --protect if those refused them",
            )


def exchange(request: Request, answer: Answer, text: str | NoProposal) -> dict[str, Any]:
    """A line of `reflections.jsonl`."""
    failed = answer.verdict.kind != "measured"
    usable = isinstance(text, str)
    return {
        "parent": prompt_digest(request.parent),
        "prompt": request.prompt,
        "key": request.key,
        "reply": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage.model_dump(exclude_none=True) if answer.usage else None,
        "attempts": answer.attempts,
        "answer": asdict(answer.verdict),
        "verdict": "failed" if failed else "proposal" if usable else "no proposal",
        "reason": None if isinstance(text, str) else text.reason,
        "candidate": prompt_digest(text) if isinstance(text, str) else None,
    }
