"""What a person can do about a parameter that a model refuses: which option sets it, and which way
to change it."""

import re

from verifiers.v1.gepa.faults.failures import Verdict

PARAMETERS = (
    *("max_completion_tokens", "max_output_tokens", "max_tokens", "max_new_tokens"),
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "reasoning_effort", "reasoning", "thinking", "response_format"),
    *("top_logprobs", "logprobs", "logit_bias", "stop", "seed", "chat_template_kwargs"),
)
"""The parameters of a request that its sampling sets."""

NAMED = re.compile(rf"(?<![\w-])({'|'.join(PARAMETERS)})(?![\w-])")
INSTEAD = re.compile(rf"use ['\"`]?({'|'.join(PARAMETERS)})['\"`]? instead", re.IGNORECASE)
LOWER = re.compile(
    r"too (large|high|big|many)|exceeds?|(must|should|has to) be (less|lower|below|smaller|<)"
    r"|less than or equal|maximum value|at most",
    re.IGNORECASE,
)
RAISE = re.compile(
    r"too (small|low|few)|(must|should|has to) be (greater|more|higher|larger|at least|above|>)"
    r"|greater than|minimum value|at least|below (the )?minimum",
    re.IGNORECASE,
)


def advice(verdict: Verdict, options: str) -> str:
    """What to change, in a few words; empty where the refusal names no parameter of the request's
    sampling. `options` is how the options begin that set it (`--sampling.`)."""
    text = verdict.cause
    named = verdict.parameter if verdict.parameter in PARAMETERS else ""
    if not named:
        found = NAMED.search(text)
        named = found[1] if found else ""
    if not named or verdict.meaning == "too long":
        return ""
    option = f"{options}{named.replace('_', '-')}"
    if other := INSTEAD.search(text):
        old = next((word for word in NAMED.findall(text) if word != other[1]), named)
        first, second = (f"{options}{word.replace('_', '-')}" for word in (other[1], old))
        return f"set {first} instead of {second}"
    if LOWER.search(text):
        return f"lower {option}"
    if RAISE.search(text):
        return f"raise {option}"
    return f"leave out {option}, or change it"
