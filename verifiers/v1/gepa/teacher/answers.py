"""Short gold answers of train tasks that turn up in a prompt: codes, numbers, names.

By itself such an answer proves nothing, since prompts are full of words and numbers. It counts only
if it is rare: the answer of `FEW` train tasks at most, in no text of another train task, and no
answer of a val or test task, which the teacher never sees. A field whose type lists its values, or
whose answers are mostly shared by tasks, holds labels, which a good prompt names.

Rare answers are copied where `SEVERAL` come into a prompt at once, or where a code or a name (with
a digit or a capital letter) stands in one line with `OWN_WORDS` words that its own task alone has.
What chance does is seen in the answers that only val and test tasks have, of which none can have
been copied: where they come into the prompt half as often, it was chance. Plain words are common in
prompts, so they count only where there are enough of those to compare them with.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from verifiers.v1.gepa.dataset import task_idx
from verifiers.v1.gepa.teacher.contents import content, leaves, most_chars
from verifiers.v1.task import Task

FEW, SEVERAL, OWN_WORDS = 2, 3, 3

SHORTEST, LONGEST = 3, 40
"""Characters of an answer; a longer one is found as a quote."""

NAMED = re.compile(
    r"(^|_)(answers?|gold|labels?|targets?|solutions?|expected|truth|reference|correct)(_|$)",
    re.IGNORECASE,
)
"""A field whose name has one of these words holds answers, and so does one that a judge reads as
such (`answer_field`)."""

WORD = re.compile(r"\w+")
LONG_WORD = re.compile(r"[^\W\d_]{4,}")

NEAR = 200
"""How far from an answer, in characters, words of its line are looked at."""


class Answers:
    """The answers of a run's train tasks; `others` are its val and test tasks."""

    def __init__(self, train: Sequence[Task], others: Sequence[Task]) -> None:
        self._train = train
        by_field: defaultdict[str, list[tuple[int | None, set[str]]]] = defaultdict(list)
        for number, task in enumerate([*train, *others]):
            owner = task_idx(task) if number < len(train) else None
            for name, found in _answers_of(task).items():
                by_field[name].append((owner, found))
        owners: defaultdict[str, list[int]] = defaultdict(list)
        elsewhere: set[str] = set()
        for given in by_field.values():
            tasks = Counter(answer for _, found in given for answer in found)
            if 2 * [*tasks.values()].count(1) <= len(tasks):  # labels
                continue
            for owner, found in given:
                for answer in sorted(found):
                    if owner is None:
                        elsewhere.add(answer)
                    elif owner not in owners[answer]:
                        owners[answer].append(owner)
        self._rare = {
            answer: indices
            for answer, indices in owners.items()
            if len(indices) <= FEW and answer not in elsewhere
        }
        self._unseen: dict[str, list[int]] = {a: [] for a in sorted(elsewhere - owners.keys())}
        """Answers of val and test alone."""

    def copied(self, prompt: str, before: Sequence[str]) -> list[tuple[int, str]]:
        """The answers that `prompt` has copied, each with the index of a task that has it; none
        that one of the prompts `before` holds."""
        found = self._new(self._rare, prompt, before)
        chance = self._new(self._unseen, prompt, before)
        if 2 * len(self._unseen) < len(self._rare):
            found = [*filter(_is_code, found)]
        by_chance = 2 * len(chance) * len(self._rare) >= len(found) * len(self._unseen)
        if len(found) < SEVERAL or (chance and by_chance):
            found = [answer for answer in found if self._told(answer, prompt, before)]
        return [(self._rare[answer][0], answer) for answer in found]

    def _new(
        self, answers: Mapping[str, list[int]], prompt: str, before: Sequence[str]
    ) -> list[str]:
        """Those of `answers` that came into `prompt`, and that no train task but their own says."""
        words = {*WORD.findall(prompt)}
        return [
            answer
            for answer, owners in answers.items()
            if words.issuperset(WORD.findall(answer))
            and _is_in(answer, prompt)
            and not any(_is_in(answer, text) for text in before)
            and not any(
                _is_in(answer, text) for idx, text in self._texts.items() if idx not in owners
            )
        ]

    def _told(self, answer: str, prompt: str, before: Sequence[str]) -> bool:
        """Whether a code or name stands beside words of its own question."""
        if not _is_code(answer):
            return False
        known = {*_long_words(answer)}.union(*map(_long_words, before))
        for idx in self._rare[answer]:
            own = {word for word in self._words[idx] if self._spread[word] == 1} - known
            for match in _pattern(answer).finditer(prompt):
                before_it = prompt[max(match.start() - NEAR, 0) : match.start()].rpartition("\n")[2]
                after_it = prompt[match.end() : match.end() + NEAR].partition("\n")[0]
                if len(own & _long_words(f"{before_it} {after_it}")) >= OWN_WORDS:
                    return True
        return False

    @cached_property
    def _texts(self) -> dict[int, str]:
        """What each train task says, by its index."""
        most = most_chars(len(self._train))
        return {task_idx(task): "\n".join(leaves(content(task)))[:most] for task in self._train}

    @cached_property
    def _words(self) -> dict[int, set[str]]:
        return {idx: _long_words(text) for idx, text in self._texts.items()}

    @cached_property
    def _spread(self) -> Counter[str]:
        """How many train tasks have a word."""
        return Counter(word for words in self._words.values() for word in words)


def _answers_of(task: Task) -> dict[str, set[str]]:
    """The short answers of a task by the field that holds them."""
    judged = {getattr(judge, "answer_field", "") for judge in task.config.judges}
    fields = type(task.data).model_fields
    answers: dict[str, set[str]] = {}
    for name, value in content(task).items():
        if name == "prompt" or (name in fields and _lists_its_values(fields[name].annotation)):
            continue
        texts = {text.strip() for text in _named(name, value, name in judged)}
        if short := {text for text in texts if _is_short(text)}:
            answers[name] = short
    return answers


def _named(name: str, value: Any, is_answer: bool) -> Iterator[str]:
    """The texts and numbers of a field, or of what is in it, that are named like an answer."""
    is_answer = is_answer or NAMED.search(name) is not None
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _named(str(key), item, is_answer)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _named("", item, is_answer)
    elif is_answer and isinstance(value, str):
        yield value
    elif is_answer and isinstance(value, int | float) and not isinstance(value, bool):
        yield f"{value:.0f}" if value == value // 1 else repr(value)


def _is_short(text: str) -> bool:
    return SHORTEST <= len(text) < LONGEST and "\n" not in text and bool(WORD.search(text))


def _lists_its_values(annotation: Any) -> bool:
    """Whether a type, optional or not, or in a list, is a `Literal` or an enum."""
    if get_origin(annotation) is Literal or (
        isinstance(annotation, type) and issubclass(annotation, Enum)
    ):
        return True
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return len(kinds) == 1 and _lists_its_values(kinds[0])


def _is_code(answer: str) -> bool:
    return answer != answer.lower() or any(map(str.isdigit, answer))


def _pattern(answer: str) -> re.Pattern[str]:
    """An answer as a whole: no part of a longer word, number or code."""
    return re.compile(
        rf"(?<!\w)(?<!\w[-./])(?<!\d[,:]){re.escape(answer)}(?!\w)(?![-./]\w)(?![,:]\d)"
    )


def _is_in(answer: str, text: str) -> bool:
    return answer in text and _pattern(answer).search(text) is not None


def _long_words(text: str) -> set[str]:
    return {*LONG_WORD.findall(text.lower())}
