"""A noisy student and a teacher of mixed quality, as real ones are, for `support-intent-v1`.

Each rule of the house can be worded vaguely, plainly or exactly, and the student obeys a wording
with the probability of `OBEYED`, drawn afresh for every rollout. The teacher reads which rules the
feedback calls broken, in our request and in that of the host. It improves the wording of one of
them half of the time, by `MOVES`; else it changes nothing that matters, forgets a rule, or adds a
harmful sentence. Hardly two of its replies are the same.

What a prompt is truly worth follows from the probabilities, so it is computed and not sampled.

All chance comes from hashes of the model's name, the texts and how often they came before. So runs
whose models are named differently don't disturb each other, and a number in the name is a seed.
"""

import hashlib
import json
import re
import runpy
from functools import cache
from itertools import combinations
from pathlib import Path

from verifiers_gepa.endpoint import Request
from verifiers_gepa.scripted import HARMLESS, HARMS, RULES
from verifiers_gepa.scripted import student as noiseless

TASKSET = Path(__file__).parents[1] / "environments/support_intent_v1/support_intent_v1"

judge = runpy.run_path(str(TASKSET / "house.py"))["judge"]
"""The taskset's own. Importing the taskset would take an endpoint seconds."""

SEED_PROMPT = "Classify the customer's message by intent."
"""The taskset's."""

OBEYED = (0.4, 0.75, 0.97)
"""By how a rule is worded: vaguely, plainly, exactly."""

SHORT_OF_EXACT = {
    "form": ("Keep the answer short.", "Answer with the word intent and a label."),
    "labels": ("Use one of the usual labels.", "Use labels such as refund, delivery or howto."),
    "cause": ("Think of what causes the message.", "Prefer a problem to what is asked for it."),
    "last": ("Mind the order of what is said.", "Prefer what is said late in the message."),
}
WORDINGS = {rule.name: (*SHORT_OF_EXACT[rule.name], rule.sentence) for rule in RULES}
"""Of every rule, from vague to exact."""

MOVES = {"improve": 0.35, "idle": 0.2, "forget": 0.15, "rewrite": 0.15, "harm": 0.15}
"""What the teacher does, by probability: a better wording of a broken rule; nothing that matters; a
worse wording of a rule, or none; both of these; a harmful sentence more."""

PROMPT = re.compile(
    r"^<current_prompt>\n(.*?)\n</current_prompt>$|following instructions.*?\n```\n(.*?)\n```\n",
    re.MULTILINE | re.DOTALL,
)
"""The prompt to improve, in our request and in that of gepa's own template."""


def chance(*parts: object) -> float:
    """A number in [0, 1) that the parts decide."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def answer(request: Request, before: int) -> str:
    """The reply to a request that came `before` times before."""
    model = str(request.body["model"])
    seed = int((re.findall(r"\d+", model) or ["0"])[0])
    if request.to_teacher:
        return propose(request.user, f"{seed} {before}")
    return reply(request.system, request.user, f"{seed} {before}")


def levels(prompt: str) -> dict[str, int]:
    """How each rule that the prompt states is worded: 0, 1, 2. The best counts."""
    found: dict[str, int] = {}
    for name, wordings in WORDINGS.items():
        for level, wording in enumerate(wordings):
            if wording in prompt:
                found[name] = level
    return found


def reply(prompt: str, message: str, draw: str) -> str:
    """The student's answer: that of the noiseless one to the rules that it obeys this time."""
    obeyed = [
        name
        for name, level in levels(prompt).items()
        if chance(draw, name, prompt, message) < OBEYED[level]
    ]
    return _answer(frozenset(obeyed), _harms(prompt), message)


def propose(request: str, draw: str) -> str:
    """The teacher's reply."""
    found = PROMPT.search(request)
    if found is None:
        raise ValueError("the request holds no current prompt")
    lines = (found[1] or found[2]).split("\n")
    records = request[found.end() :]
    broken = [rule.name for rule in RULES if rule.marker in records]

    def pick(what: str, number: int) -> int:
        return int(chance(draw, what, request) * number)

    lines = [line for line in lines if line not in HARMLESS]
    known = levels("\n".join(lines))
    move = _move(chance(draw, "move", request))
    if move in ("forget", "rewrite") and known:
        name = sorted(known)[pick("forgets", len(known))]
        lines = _reworded(lines, name, known[name] - 1 - pick("how much", known[name] + 1))
    if move in ("improve", "rewrite") and broken:
        name = broken[pick("improves", len(broken))]
        lowest = known.get(name, -1) + 1
        if lowest < len(OBEYED):
            lines = _reworded(lines, name, lowest + pick("level", len(OBEYED) - lowest))
        if pick("cleans", 3) == 0:
            lines = [line for line in lines if line not in HARMS]
    if move == "harm":
        lines.append(list(HARMS)[pick("harm", len(HARMS))])
    lines.append(HARMLESS[pick("advice", len(HARMLESS))])
    return "I looked at the examples.\n\n```\n" + "\n".join(dict.fromkeys(lines)) + "\n```"


def true_score(prompt: str, skip: int = 0) -> float:
    """The mean reward that the student earns under `prompt`, over the messages after the first
    `skip`."""
    known = levels(prompt)
    total = 0.0
    for size in range(len(known) + 1):
        for obeyed in combinations(sorted(known), size):
            weight = 1.0
            for name, level in known.items():
                weight *= OBEYED[level] if name in obeyed else 1 - OBEYED[level]
            total += weight * _mean_reward(frozenset(obeyed), _harms(prompt), skip)
    return total


def score(message: str, reply: str) -> tuple[float, str]:
    """The reward of a reply to `message`, and the feedback."""
    row = messages()[message]
    verdict = judge(reply, row["label"], row["rule"], row["other"])
    return sum(verdict.rewards.values()), verdict.feedback


@cache
def messages() -> dict[str, dict[str, str]]:
    """The rows of the taskset by their message, in its order."""
    lines = (TASKSET / "messages.jsonl").read_text("utf-8").splitlines()
    return {row["text"]: row for row in map(json.loads, lines)}


def _move(dice: float) -> str:
    for move, share in MOVES.items():
        dice -= share
        if dice < 0:
            return move
    return move


def _harms(prompt: str) -> tuple[str, ...]:
    return tuple(sentence for sentence in HARMS if sentence in prompt)


def _reworded(lines: list[str], name: str, level: int) -> list[str]:
    """The prompt with rule `name` worded at `level`, below 0 without it."""
    rest = [line for line in lines if line not in WORDINGS[name]]
    return [*rest, WORDINGS[name][level]] if level >= 0 else rest


def _answer(obeyed: frozenset[str], harms: tuple[str, ...], message: str) -> str:
    sentences = [WORDINGS[name][-1] for name in sorted(obeyed)]
    return noiseless("\n".join([SEED_PROMPT, *sentences, *harms]), message)


@cache
def _mean_reward(obeyed: frozenset[str], harms: tuple[str, ...], skip: int) -> float:
    rest = list(messages())[skip:]
    return sum(score(text, _answer(obeyed, harms, text))[0] for text in rest) / len(rest)
