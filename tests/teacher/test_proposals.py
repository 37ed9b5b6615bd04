"""The rule that makes a teacher's reply a prompt, or not."""

import pytest

from verifiers.v1.gepa.teacher.proposals import NoProposal, extract_prompt

NO_BLOCK = NoProposal("the reply holds no fenced block")
OPEN = NoProposal("the fenced block is not closed: the reply was cut off")
EMPTY = NoProposal("the reply is empty")
EMPTY_BLOCK = NoProposal("the fenced block is empty")
THINKING = NoProposal("the reply ends inside its reasoning")

TEXTS = {
    "one block": ("````\nBe kind.\n````", "Be kind."),
    "three backticks": ("```\nBe kind.\n```", "Be kind."),
    "tildes": ("~~~\nBe kind.\n~~~", "Be kind."),
    "a language tag": ("```text\nBe kind.\n```", "Be kind."),
    "text around": ("I added a rule.\n\n````\nBe kind.\n````\n\nHope this helps!", "Be kind."),
    "the last of several blocks": ("```\nold\n```\nbecomes\n```\nnew\n```\nDone.", "new"),
    "shorter fences inside": (
        "````\nReply so:\n```json\n{}\n```\nNothing else.\n````",
        "Reply so:\n```json\n{}\n```\nNothing else.",
    ),
    "equal fences with a tag inside": (
        "```\nReply so:\n```json\n{}\n```\nNothing else.\n```",
        "Reply so:\n```json\n{}\n```\nNothing else.",
    ),
    "fences of the other kind inside": ("```\na\n~~~\nb\n~~~\n```", "a\n~~~\nb\n~~~"),
    "backticks inside a line": ("```\nuse `x` and ```y```\n```", "use `x` and ```y```"),
    "bytes kept": (
        "````\n  lead\t\r\n\r\n{question} %s $VAR \U0001f600 \n\n````",
        "  lead\t\r\n\r\n{question} %s $VAR \U0001f600 \n",
    ),
    "line ends of the fences": ("````\r\nBe kind.\r\n````\r\n", "Be kind."),
    "reasoning first": ("<think>\n```\ndraft\n```\n</think>\n```\nfinal\n```", "final"),
    "reasoning whose opening tag is gone": ("hm, well</think>\n```\nfinal\n```", "final"),
    "tags in the prompt": ("```\nThink in <think> tags.\n```", "Think in <think> tags."),
}

REFUSALS = {
    "empty": ("", EMPTY),
    "null": (None, EMPTY),
    "blanks": (" \n\t ", EMPTY),
    "no fence": ("Be kind.", NO_BLOCK),
    "a refusal": ("I'm sorry, I can't help with that.", NO_BLOCK),
    "opening fence only": ("````\nBe kind and", OPEN),
    "cut off in a block inside": ("````\nReply so:\n```json\n{}\n```\nand", OPEN),
    "cut off in the second block": ("```\nold\n```\nbecomes\n```\nne", OPEN),
    "inner block never closed": ("```\nReply so:\n```json\n{}\n```\n", OPEN),
    "empty block": ("````\n\n````", EMPTY_BLOCK),
    "a block without a line": ("````\n````", EMPTY_BLOCK),
    "unclosed reasoning": ("<think>\nMaybe\n```\ndraft\n```\n", THINKING),
    "reasoning only": ("<think>hm</think>", NO_BLOCK),
}


@pytest.mark.parametrize(("reply", "text"), TEXTS.values(), ids=TEXTS)
def test_the_text_of_the_block(reply: str, text: str) -> None:
    assert extract_prompt(reply, "stop") == text


@pytest.mark.parametrize(("reply", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_no_proposal(reply: str | None, reason: NoProposal) -> None:
    assert extract_prompt(reply, "stop") == reason


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("length", "the reply was cut off at a limit"),
        ("max_tokens", "the reply was cut off at a limit"),
        ("MAX_TOKENS", "the reply was cut off at a limit"),
        ("model_context_window_exceeded", "the reply was cut off at a limit"),
        ("content_filter", "the reply was cut off by a content filter"),
        ("SAFETY", "the reply was cut off by a content filter"),
        ("sensitive", "the reply was cut off by a content filter"),
        ("network_error", "the endpoint broke off the reply"),
        ("insufficient_system_resource", "the endpoint broke off the reply"),
        ("error", "the endpoint broke off the reply"),
        ("tool_calls", "the endpoint does not say that the reply is whole"),
        ("who_knows", "the endpoint does not say that the reply is whole"),
    ],
)
def test_a_reply_that_is_not_whole_is_none_however_complete_it_looks(
    reason: str, what: str
) -> None:
    assert extract_prompt("```\nBe kind.\n```", reason) == NoProposal(
        f"{what} (finish reason {reason!r})"
    )


@pytest.mark.parametrize("reason", ["stop", "STOP", "end_turn", "eos", None])
def test_a_reply_that_is_whole_is_read(reason: str | None) -> None:
    assert extract_prompt("```\nBe kind.\n```", reason) == "Be kind."


@pytest.mark.parametrize(
    "before",
    [
        "```" + " " * 100_000 + "`\n",
        "</think>" * 40_000 + "\n",
        "<think>x</think>\n" * 40_000,
        "<think>" * 40_000 + "</think>\n",
    ],
    ids=["blanks", "ends", "blocks", "openings"],
)
def test_a_long_reply_is_read_once(before: str) -> None:
    """Reading it again and again, or in every way that there is, would take hours."""
    assert extract_prompt(f"{before}```text  \nnew\n```") == "new"


def test_a_fence_right_after_the_reasoning_is_the_first_one() -> None:
    assert extract_prompt("so</think>```\nSay <think> aloud.\n```") == "Say <think> aloud."
