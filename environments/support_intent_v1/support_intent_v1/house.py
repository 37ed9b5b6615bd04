"""The house style and how a reply is measured against it.

The style is four rules that no model can know beforehand: an output form, a label set, and two
rules for messages that fit two labels. A reply earns each part by itself, so a prompt that states
one more of the rules scores higher at once, whichever rule it is.

Scoring reads the reply as text and nothing else: the same reply always gets the same verdict.
"""

import re
from dataclasses import dataclass
from typing import Literal

Label = Literal["refund", "cancel", "delivery", "billing", "account", "defect", "howto", "presale"]
TieBreak = Literal["cause", "last"]

LABELS: dict[str, str] = {
    "refund": "the customer wants money back and names no problem",
    "cancel": "the customer wants to end a plan or stop an order and names no problem",
    "delivery": "where a parcel is, when and where it comes, what happened to it on the way",
    "billing": "charges, invoices, prices on a bill, ways to pay",
    "account": "signing in, the profile, personal data",
    "defect": "a product, the app or the website does not work as it should",
    "howto": "how to use, set up or clean something",
    "presale": "a question before buying: range, stock, price, advice",
}
"""Every label of the house with what it is for."""

TIE_BREAKS: dict[str, str] = {
    "cause": "if a message names a problem and also asks for a refund or a cancellation, the label "
    "is the one of the problem",
    "last": "if a message raises two separate matters, the label is the one of the matter raised "
    "last",
}
"""Which of two fitting labels the house takes."""

FORM_RULE = (
    "the whole answer is one line, `intent: ` and the label, all in lower case, with nothing "
    "before or after it"
)
SET_RULE = f"the label is one of {', '.join(LABELS)}"

FORM_REWARD = 0.25
SET_REWARD = 0.25
LABEL_REWARD = 0.5

_FORM = re.compile(r"intent: ([a-z]+(?:[ _-][a-z]+)*)")
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Verdict:
    """What one reply got: a flag for each part, and what to tell about the parts it missed."""

    form: bool
    label_set: bool
    label: bool
    feedback: str

    @property
    def rewards(self) -> dict[str, float]:
        """The rewards of the three parts; they add up to 1 for the house's own answer."""
        return {
            "form": FORM_REWARD * self.form,
            "label_set": SET_REWARD * self.label_set,
            "label": LABEL_REWARD * self.label,
        }


def judge(
    reply: str | None, label: str, rule: str | None = None, other: str | None = None
) -> Verdict:
    """Measure `reply` to a message whose house label is `label`.

    `rule` is the tie-break that decides the message (None if only one label fits) and `other` the
    label that it rejects. Never raises: an empty or odd reply has missed the parts it lacks.
    """
    text = (reply or "").strip()
    form = _FORM.fullmatch(text)
    # Prose still names a label if exactly one of the set is among its words.
    words = [form[1]] if form else _WORD.findall(text.casefold())
    named = LABELS.keys() & set(words)
    answer = next(iter(named)) if len(named) == 1 else None

    broken = []
    if not form:
        fault = "The answer was empty." if not text else "The answer was not in that form."
        broken.append(f"Form rule broken. House rule: {FORM_RULE}. {fault}")
    if answer is None:
        fault = "several of them" if named else "none of them"
        broken.append(
            f"Label set rule broken. House rule: {SET_RULE}. The answer named {fault}; this "
            f"message is `{label}` ({LABELS[label]})."
        )
    elif answer != label and rule is not None and answer == other:
        broken.append(
            f"{rule.capitalize()} rule broken. House rule: {TIE_BREAKS[rule]}. The answer was "
            f"`{answer}`, and by this rule the message is `{label}`."
        )
    elif answer != label:
        broken.append(
            f"Wrong label. The answer was `{answer}` ({LABELS[answer]}), but this message is "
            f"`{label}` ({LABELS[label]})."
        )
    return Verdict(
        form=form is not None,
        label_set=answer is not None,
        label=answer == label,
        feedback="\n".join(broken) or "Every house rule was kept.",
    )
