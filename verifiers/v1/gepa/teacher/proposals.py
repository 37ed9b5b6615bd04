"""From a teacher's reply to the text of a new prompt, or the reason why it holds none.

The teacher is asked to end its reply with the whole new prompt in one fenced block. The rule:

- Reasoning goes first: a `<think>` block that opens before the first fence is dropped, up to its
  `</think>`; one that never closes means that the reply was cut off. A `</think>` before the first
  fence without an opening tag (some chat templates eat it) ends the reasoning as well.
- A fence is a line of three or more backticks or tildes, indented by at most three blanks; after an
  opening fence there may be a language tag. A block closes at the next bare fence of the same
  character that is at least as long as the opening one. Shorter fences inside it, and fences of the
  other character, are text; a fence as long as the opening one *with* a tag opens a block inside
  the block, which the next bare fence closes.
- The proposal is the text of the last block, byte for byte between the two fence lines. Text before
  and after the block is commentary; earlier blocks are quotations and drafts.
- No block, a last block that is not closed, a block of blanks, or a reply whose finish reason does
  not say that it is whole is no proposal.
"""

import re
from dataclasses import dataclass

from direct_chat.finish import Finish, finish_of

# Possessive where a line could be read in several ways: a reply must not make its reading slow.
_FENCE = r" {0,3}(?P<mark>`{3,}+|~{3,}+)(?P<tag>[^`\r\n]*+)\r?$"
_OPEN, _CLOSE = r"<think(?:ing)?>", r"</think(?:ing)?>"
FENCE = re.compile(f"^{_FENCE}", re.MULTILINE)
FENCE_HERE = re.compile(_FENCE, re.MULTILINE)
CLOSE_THINK = re.compile(_CLOSE, re.IGNORECASE)
MARK = re.compile(
    f"(?P<opening>{_OPEN})|(?P<closing>{_CLOSE})|(?P<fence>^{_FENCE})", re.IGNORECASE | re.MULTILINE
)
"""What comes next: reasoning that opens or ends, or a fence."""


UNFINISHED: dict[Finish, str] = {
    "cut": "the reply was cut off at a limit",
    "filtered": "the reply was cut off by a content filter",
    "broken": "the endpoint broke off the reply",
    "unknown": "the endpoint does not say that the reply is whole",
}
"""What a reply is that is not whole, by what its finish reason says."""

UNANSWERED = "the teacher's endpoint failed"
"""How the reason begins where there is no reply."""


@dataclass(frozen=True)
class NoProposal:
    """Why a reply is not a candidate."""

    reason: str


def extract_prompt(reply: str | None, finish_reason: str | None = None) -> str | NoProposal:
    """The new prompt that `reply` holds, by the rule of this module."""
    if finish_reason is not None and (finish := finish_of(finish_reason)) != "whole":
        return NoProposal(f"{UNFINISHED[finish]} (finish reason {finish_reason!r})")
    if reply is None or not reply.strip():
        return NoProposal("the reply is empty")
    answer = _without_reasoning(reply)
    if answer is None:
        return NoProposal("the reply ends inside its reasoning")
    text = _last_block(answer)
    if isinstance(text, NoProposal):
        return text
    if not text.strip():
        return NoProposal("the fenced block is empty")
    return text


def _without_reasoning(reply: str) -> str | None:
    """`reply` after its reasoning, None where the reasoning does not end."""
    start = 0
    while not (start and FENCE_HERE.match(reply, start)):
        mark = MARK.search(reply, start)
        if mark is None or mark["fence"] is not None:
            break
        closing = CLOSE_THINK.search(reply, mark.end()) if mark["opening"] else mark
        if closing is None:
            return None
        start = closing.end()
    return reply[start:]


def _last_block(answer: str) -> str | NoProposal:
    block: str | NoProposal = NoProposal("the reply holds no fenced block")
    opening: re.Match[str] | None = None
    inner = 0
    for fence in FENCE.finditer(answer):
        mark, tag = fence["mark"], fence["tag"].strip(" \t")
        if opening is None:
            opening, inner = fence, 0
        elif mark[0] != opening["mark"][0] or len(mark) < len(opening["mark"]):
            continue
        elif tag:
            inner += 1
        elif inner:
            inner -= 1
        else:
            block = _between(answer, opening, fence)
            opening = None
    if opening is not None:
        return NoProposal("the fenced block is not closed: the reply was cut off")
    return block


def _between(answer: str, opening: re.Match[str], closing: re.Match[str]) -> str:
    text = answer[opening.end() + 1 : closing.start()]
    for line_end in ("\r\n", "\n"):
        if text.endswith(line_end):
            return text[: -len(line_end)]
    return text
