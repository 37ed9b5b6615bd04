"""The scripted student and teacher behind the simulated endpoint.

The student knows the right label of every message of `support-intent-v1` and obeys exactly those
rules of the house that its system prompt states; the teacher reads the feedback in its request and
adds one rule that is missing, or now and then a harmful sentence. So a search finds a better prompt
for a reason that can be followed by eye, with no model and no key.

Both are functions of their arguments: what looks like chance comes from a hash of the seed and the
texts, never from the order or the time of the calls.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from verifiers_gepa.endpoint import Reply, Request, Respond


@dataclass(frozen=True)
class Rule:
    """The student obeys the rule if its system prompt contains `sentence`; the teacher may add the
    sentence if the feedback contains `marker`."""

    name: str
    marker: str
    sentence: str


RULES = (
    Rule(
        "form",
        "Form rule broken",
        "Answer with exactly one line, `intent: ` and the label, all in lower case, and write "
        "nothing else.",
    ),
    Rule(
        "labels",
        "Label set rule broken",
        "Use only these labels: refund, cancel, delivery, billing, account, defect, howto, "
        "presale.",
    ),
    Rule(
        "cause",
        "Cause rule broken",
        "If a message names a problem and also asks for a refund or a cancellation, label the "
        "problem.",
    ),
    Rule(
        "last",
        "Last rule broken",
        "If a message raises two separate matters, label the one that is raised last.",
    ),
)

HARMS: dict[str, Callable[[str], str]] = {
    "If the customer sounds upset, begin with an apology.": lambda text: f"Oh no, sorry! {text}",
    "Write the answer in capital letters if the message is urgent.": str.upper,
}
"""Sentences that spoil the answers to about half of the messages, and how."""

HARMLESS = tuple(
    f"{verb} {what} {how} before you {end}."
    for verb, what, how, end in product(
        ("Read", "Consider", "Go through", "Look at"),
        ("the message", "every sentence", "all the words", "the whole text"),
        ("calmly", "with care", "closely", "patiently"),
        ("answer", "decide", "reply", "choose"),
    )
)
"""Sentences that change nothing: what the teacher adds where no rule is missing. Many, so that a
search which has found every rule still gets new texts."""

FREE_WORDS = {
    "refund": "money returned",
    "cancel": "termination",
    "delivery": "delivery",
    "billing": "payment",
    "account": "account",
    "defect": "malfunction",
    "howto": "usage",
    "presale": "enquiry",
}
"""What the student calls a label while it has not been told the set. Two it guesses right."""

KEYWORDS = {
    "refund": ("refund", "money back", "return"),
    "cancel": ("cancel", "subscription", "stop"),
    "delivery": ("parcel", "courier", "deliver", "tracking"),
    "billing": ("invoice", "charge", "bill", "payment"),
    "account": ("password", "log in", "sign in", "profile"),
    "defect": ("broken", "crash", "leak", "error"),
    "howto": ("how do i", "how to", "clean", "set up"),
    "presale": ("do you sell", "in stock", "recommend", "difference"),
}
"""By which words the student classifies a message that is not in the taskset."""

HARM_ONE_IN = 5


@dataclass(frozen=True)
class Message:
    """A message's label, and the tie-break that decides it with the label that it rejects."""

    label: str
    rule: str | None = None
    other: str | None = None


def student(system: str, message: str, seed: int = 0, noise: float = 0.0) -> str:
    """The answer to `message` under the prompt `system`; it overlooks each stated rule with
    probability `noise`.

    To anything but a message to classify it answers with the text reversed, if the prompt asks for
    that, or with the text itself.
    """
    known = _messages().get(message.strip())
    if known is None:
        prompt = system.casefold()
        if "revers" in prompt:
            return message[::-1]
        if "classif" not in prompt and "intent" not in prompt:
            return message
        known = _guess(message)

    def obeys(rule: Rule) -> bool:
        return rule.sentence in system and _chance(seed, rule.name, system, message) >= noise

    obeyed = {rule.name for rule in RULES if obeys(rule)}
    overruled = known.other is not None and known.rule not in obeyed
    label = known.other if overruled and known.other else known.label
    words = label if "labels" in obeyed else FREE_WORDS[label]
    answer = f"intent: {words}" if "form" in obeyed else f"I think this is about: {words}."
    for sentence, spoil in HARMS.items():
        if sentence in system and _chance(sentence, message) < 0.5:
            answer = spoil(answer)
    return answer


def teacher(request: str, seed: int = 0) -> str:
    """The reply to a reflection request, which holds the current prompt between the lines
    `<current_prompt>` and `</current_prompt>` and the records with their feedback after it: a
    sentence of reasoning and the new prompt, fenced by four backticks."""
    found = re.search(r"^<current_prompt>\n(.*?)\n</current_prompt>$", request, re.S | re.M)
    if found is None:
        return "The request holds no current prompt, so there is nothing to improve."
    prompt, records = found[1], request[found.end() :]
    missing = [
        (f"The feedback says: {rule.marker.lower()}. I add the rule {rule.name!r}.", rule.sentence)
        for rule in RULES
        if rule.marker in records and rule.sentence not in prompt
    ]
    harms = [
        ("The answers could do with more feeling.", sentence)
        for sentence in HARMS
        if sentence not in prompt
    ]
    harmless = [
        ("No rule is missing here, so I only add some advice.", sentence)
        for sentence in HARMLESS
        if sentence not in prompt
    ]
    harmful = _chance(seed, "harm", request) < 1 / HARM_ONE_IN
    choices = (harms if harmful else missing) or missing or harmless
    if not choices:
        return f"I would leave the prompt as it is.\n\n````\n{prompt}\n````"
    reasoning, sentence = choices[int(_chance(seed, "choice", request) * len(choices))]
    return f"{reasoning}\n\n````\n{prompt}\n{sentence}\n````"


def scripted(seed: int = 0, noise: float = 0.0, latency: float = 0.0) -> Respond:
    """Student and teacher as what an `Endpoint` answers; `latency` is in seconds per reply."""

    async def respond(request: Request) -> Reply:
        if latency:
            await asyncio.sleep(latency)
        if request.to_teacher:
            return Reply(teacher(request.user, seed))
        return Reply(student(request.system, request.user, seed, noise))

    return respond


def _chance(*parts: object) -> float:
    """A number in [0, 1) that the parts decide."""
    digest = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _guess(message: str) -> Message:
    text = message.casefold()
    return Message(max(KEYWORDS, key=lambda label: sum(word in text for word in KEYWORDS[label])))


@cache
def _messages() -> dict[str, Message]:
    """The taskset's messages, read from its file: importing it would import `verifiers.v1`, which
    takes seconds. Empty if the taskset is not installed."""
    spec = find_spec("support_intent_v1")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    repository = Path(__file__).parents[1] / "environments/support_intent_v1/support_intent_v1"
    for folder in [*map(Path, places), repository]:
        file = folder / "messages.jsonl"
        if file.is_file():
            rows = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
            return {row["text"]: Message(row["label"], row["rule"], row["other"]) for row in rows}
    return {}
