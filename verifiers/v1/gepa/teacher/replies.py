"""What becomes of the teacher's answers: a proposal, or the reason why there is none; and when a
search ends because they are of no use."""

import logging
from collections import Counter
from dataclasses import asdict
from typing import Any

from direct_chat.finish import finish_of
from verifiers.v1.gepa.faults.advice import advice
from verifiers.v1.gepa.faults.failures import MEASURED, Fault
from verifiers.v1.gepa.record.files import REFLECTIONS_FILE
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.spend.budget import SearchStopped
from verifiers.v1.gepa.teacher.client import BROKEN_OFF, Answer
from verifiers.v1.gepa.teacher.proposals import UNANSWERED, NoProposal, extract_prompt
from verifiers.v1.gepa.teacher.quality import Quality
from verifiers.v1.gepa.teacher.requests import Request

logger = logging.getLogger(__name__)

DUPLICATE = "the proposed text is not new in this run"

MAX_UNUSABLE = 10
"""Replies in a row that may hold no proposal before the run stops."""

MAX_REFUSED = 3
"""Different requests in a row that the endpoint may refuse before the run stops."""

LIMITED = "the proposed text can't be used"

OPTIONS = "--reflection-sampling."


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
        self._refused: set[str] = set()
        """The requests that were refused since the last reply."""

    def judge(self, request: Request, answer: Answer) -> tuple[str | NoProposal, bool]:
        """The text that the answer to a request proposes, and whether the answer is a fault that
        stops the run, so that a resume has to ask again."""
        self.counts["tried"] += 1
        refused = answer.verdict.kind == "refused"
        self._refused = {*self._refused, request.key} if refused else set()
        text = self._usable(answer)
        if not isinstance(text, NoProposal):
            self._unusable_in_row = self._echoes_in_row = 0
            return text, False
        logger.info("no proposal: %s", text.reason)
        broken = answer.verdict.meaning == BROKEN_OFF  # in every attempt; the next may be whole
        failed = answer.verdict.kind in ("transient", "permanent") and not broken
        if failed or len(self._refused) == MAX_REFUSED:
            self.counts["failed"] += 1
            what = advice(answer.verdict, OPTIONS)
            self.stop = Fault(
                f"the teacher failed: {answer.verdict.cause} ({self._url})"
                + (f"; {what}" if what else "")
            )
            return text, True
        self._count(answer, text.reason)
        return text, False

    def _usable(self, answer: Answer) -> str | NoProposal:
        if answer.verdict != MEASURED:
            if answer.verdict.meaning == BROKEN_OFF:
                return NoProposal(answer.verdict.cause)
            refused = answer.verdict.kind in ("measured", "refused")  # this request
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
            return NoProposal(f"{LIMITED}: {unfit}")
        self._known.add(digest)
        return text

    def _count(self, answer: Answer, reason: str) -> None:
        """Count an answer without a proposal: the endpoint works, it is the reply that is of no
        use. Many in a row end the search."""
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
                f"{reason}); read {REFLECTIONS_FILE}, then start another run with "
                f"{_remedy(answer, reason)}",
            )


def _remedy(answer: Answer, reason: str) -> str:
    """What may help against replies like this one."""
    if answer.verdict.meaning == "too long":
        return "a smaller --max-reflection-chars or a --reflection-model with a longer context"
    if what := advice(answer.verdict, OPTIONS):
        return f"other sampling ({what}) or another --reflection-model"
    if answer.finish_reason is not None and finish_of(answer.finish_reason) == "cut":
        return f"another --reflection-model or a larger {OPTIONS}max-tokens"
    if reason.startswith(LIMITED):
        return "another --reflection-model, or other --max-prompt-chars or --protect"
    return "another --reflection-model"


def exchange(
    request: Request, answer: Answer, text: str | NoProposal, failed: bool
) -> dict[str, Any]:
    """A line of `reflections.jsonl`; `failed` as `Replies.judge` says."""
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
