"""What is demanded of a prompt, and what one should look at before it is deployed.

The user's demands (a length, texts that must stay) are checked before a proposal costs a rollout.
Three things are only flagged, since they can be right: a placeholder of the parent or the seed
prompt that is gone, a quote of a train task, and short answers of train tasks (see `answers`). A
quote is what the prompt has in common with exactly
one train task and not with the seed prompt: a run of `RUN` characters, or a whole text of the task
(its input, an answer) that is shorter, but of `WHOLE` characters and `WORDS` words at least. Blanks
and case don't matter. What several tasks share (labels, instructions) is no quote.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal, TypedDict

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import task_idx
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.teacher.answers import Answers
from verifiers.v1.gepa.teacher.contents import content, leaves, most_chars
from verifiers.v1.task import Task
from verifiers.v1.utils.texts import shorten

RUN = 40
WHOLE, WORDS = 16, 3

BLOCK = RUN // 2
"""A run of `RUN` characters holds one of the blocks that a text is divided into whole."""

MOST_FLAGS = 5
"""Flags of one kind that a prompt gets at most."""

SHOWN_CHARS = 120

PLACEHOLDER = re.compile(r"\{[A-Za-z_][\w.]*\}")


class Flag(TypedDict):
    """Something to look at in a prompt."""

    flag: Literal["placeholder", "quote", "answer"]
    task: int | None
    """Index of the train task that is quoted, or whose answer it is."""
    text: str
    """The placeholder, the quote, shortened, or the answer."""


class Quality:
    """Checks the prompts of one run. Of the val and test tasks, `others`, the answers are looked
    at, to know which ones are common."""

    def __init__(
        self,
        config: GEPAConfig,
        seed_prompt: str,
        train: Sequence[Task],
        others: Sequence[Task] = (),
    ) -> None:
        self.limit = config.max_prompt_chars
        self.protect = config.protect
        self.seed_prompt = seed_prompt
        self._train = train
        self._others = others
        self._quotes: dict[str, list[Flag]] = {}
        self._copied: dict[tuple[str, str], list[Flag]] = {}

    def refusal(self, text: str) -> str | None:
        """Why a proposed text can't be used, None where it can."""
        return unmet(text, self.limit, self.protect)

    def flags(self, text: str, parent: str | None) -> list[Flag]:
        """What there is to look at in `text`, which was made from `parent`; nothing in the seed
        prompt, which has none."""
        if parent is None:
            return []
        wanted = PLACEHOLDER.findall(self.seed_prompt) + PLACEHOLDER.findall(parent)
        gone = [name for name in dict.fromkeys(wanted) if name not in text]
        lost: list[Flag] = [{"flag": "placeholder", "task": None, "text": name} for name in gone]
        key = prompt_digest(text)
        if key not in self._quotes:
            self._quotes[key] = self._train_texts.quotes(_plain(text), _plain(self.seed_prompt))
        return lost[:MOST_FLAGS] + self._quotes[key] + self._answers(text, parent)

    def _answers(self, text: str, parent: str) -> list[Flag]:
        key = prompt_digest(text), prompt_digest(parent)
        if key not in self._copied:
            copied = self._train_answers.copied(text, [parent, self.seed_prompt])
            self._copied[key] = [
                {"flag": "answer", "task": idx, "text": answer}
                for idx, answer in copied[:MOST_FLAGS]
            ]
        return self._copied[key]

    @cached_property
    def _train_answers(self) -> Answers:
        return Answers(self._train, self._others)

    @cached_property
    def _train_texts(self) -> "_Texts":
        return _Texts(self._train)


def unmet(text: str, limit: int | None, protect: Sequence[str]) -> str | None:
    """Which demand a prompt does not meet, None where it meets all."""
    if limit is not None and len(text) > limit:
        return f"longer than --max-prompt-chars {limit} ({len(text)} characters)"
    for wanted in protect:
        if wanted not in text:
            return f"it lacks a text of --protect: {shorten(wanted, SHOWN_CHARS)!r}"
    return None


def describe(flags: Sequence[Flag]) -> list[str]:
    """The flags of one prompt in words, one line per kind."""
    gone = [flag["text"] for flag in flags if flag["flag"] == "placeholder"]
    quoted = [flag for flag in flags if flag["flag"] == "quote"]
    lines = []
    if gone:
        lines.append(f"lacks placeholders that were there before: {', '.join(gone)}")
    if quoted:
        tasks = ", ".join(dict.fromkeys(str(flag["task"]) for flag in quoted))
        lines.append(f"quotes train tasks ({tasks}), for example {quoted[0]['text']!r}")
    if answers := [flag for flag in flags if flag["flag"] == "answer"]:
        tasks = ", ".join(dict.fromkeys(str(flag["task"]) for flag in answers))
        lines.append(f"holds answers of train tasks ({tasks}), for example {answers[0]['text']!r}")
    return lines


class _Texts:
    """The texts of the train tasks, by which quotes are found: every block that one task alone has
    -> where it is."""

    def __init__(self, train: Sequence[Task]) -> None:
        self._texts: list[tuple[int, str]] = []
        """Index of the task, and one of its texts."""
        most = most_chars(len(train))
        for task in train:
            left = most
            for text in dict.fromkeys(map(_plain, leaves(content(task)))):
                if left > 0 and len(text) >= WHOLE:
                    self._texts.append((task_idx(task), text[:left]))
                    left -= len(text)
        self._blocks: dict[str, tuple[int, int] | None] = {}
        """Block -> the text that has it and its position there; None for one of several tasks."""
        for number, (idx, text) in enumerate(self._texts):
            for start in range(0, len(text) - BLOCK + 1, BLOCK):
                block = text[start : start + BLOCK]
                known = self._blocks.setdefault(block, (number, start))
                if known is not None and self._texts[known[0]][0] != idx:
                    self._blocks[block] = None
        tasks_with = Counter({text: 0 for _, text in self._texts})
        tasks_with.update(text for _, text in {(idx, text) for idx, text in self._texts})
        self._short = [
            (idx, text)
            for idx, text in self._texts
            if len(text) < RUN and len(text.split()) >= WORDS and tasks_with[text] == 1
        ]

    def quotes(self, prompt: str, seed: str) -> list[Flag]:
        """The quotes in `prompt`, both as `_plain` gives them."""
        found = [(idx, text) for idx, text in self._short if text in prompt and text not in seed]
        for idx, run in self._runs(prompt):
            if len(found) >= MOST_FLAGS:
                break
            shared = any(other != idx and run in text for other, text in self._texts)
            if not shared and run not in seed:
                found.append((idx, run))
        return [
            {"flag": "quote", "task": idx, "text": shorten(text, SHOWN_CHARS)}
            for idx, text in found[:MOST_FLAGS]
        ]

    def _runs(self, prompt: str) -> Iterator[tuple[int, str]]:
        """Every run of `RUN` characters or more that `prompt` has in common with a task, none of
        them overlapping, with the task's index."""
        position = 0
        while position + BLOCK <= len(prompt):
            place = self._blocks.get(prompt[position : position + BLOCK])
            if place is None:
                position += 1
                continue
            idx, text = self._texts[place[0]]
            start, end = position, position + BLOCK
            back, ahead = place[1], place[1] + BLOCK
            while start and back and prompt[start - 1] == text[back - 1]:
                start, back = start - 1, back - 1
            while end < len(prompt) and ahead < len(text) and prompt[end] == text[ahead]:
                end, ahead = end + 1, ahead + 1
            if end - start >= RUN:
                yield idx, prompt[start:end]
                position = end
            else:
                position += 1


def _plain(text: str) -> str:
    """`text` with single blanks and in lower case."""
    return " ".join(text.lower().split())
