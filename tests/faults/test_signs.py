"""What providers say: every row of the table, and the answers of providers as they were seen."""

import json
from typing import Any

import pytest

from verifiers.v1.gepa.faults.advice import advice
from verifiers.v1.gepa.faults.failures import Verdict, judge_status, within
from verifiers.v1.gepa.faults.refusals import read_refusal
from verifiers.v1.gepa.faults.signs import MEANINGS, SIGNS, Sign, meaning_of

USUAL = {"throttled": 429, "throttled for long": 429, "bad key": 401, "no model": 404}
"""The status of a row that fits any."""


def status_of(sign: Sign) -> int:
    return sign.statuses[0] if sign.statuses else USUAL.get(sign.meaning, 400)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: f"{sign.meaning}: {sign.provider}")
def test_each_row_knows_its_example(sign: Sign) -> None:
    """As the host, the SDK and a gateway that wraps it hand it on."""
    status = status_of(sign)
    for text in (
        f"upstream {status}: {sign.example}",
        f"Error code: {status} - {_as_python(sign.example)}",
        json.dumps({"error": {"message": "Provider returned error", "raw": sign.example}}),
    ):
        refusal = read_refusal(status, text)
        assert sign.fits(refusal), text
        assert meaning_of(refusal) == sign.meaning, text


def _as_python(text: str) -> str:
    try:
        return repr(json.loads(text))
    except ValueError:
        return text


def test_every_meaning_has_rows_of_several_providers() -> None:
    for meaning in MEANINGS:
        assert len({sign.provider for sign in SIGNS if sign.meaning == meaning}) >= 2, meaning
    assert len({(s.meaning, s.code, s.words, s.statuses) for s in SIGNS}) == len(SIGNS)


@pytest.mark.parametrize(
    ("status", "text", "kind", "meaning"),
    [
        (400, "upstream 400: no JSON at all", "refused", ""),
        (400, '{"error": {"message": "something else"}}', "refused", ""),
        (413, "upstream 413: ", "measured", "too long"),
        (403, '{"error": {"message": "forbidden"}}', "permanent", ""),
        (429, "slow down", "transient", "throttled"),
        (
            429,
            "on tokens per minute: Limit 7000, Used 0, Requested ~12903.",
            "measured",
            "too long",
        ),
        (
            429,
            "on tokens per minute: Limit 7000, Used 6000, Requested 1290.",
            "transient",
            "throttled",
        ),
        (500, "oops", "transient", ""),
        (500, "the content management service is down", "transient", ""),
        (503, "model not found, it is being loaded", "transient", ""),
        (529, '{"type": "error", "error": {"type": "overloaded_error"}}', "transient", ""),
        # A refusal that only mentions the words of another.
        (
            400,
            '{"error": {"message": "top_p must be at most 1", "param": "top_p"}}',
            "refused",
            "bad parameter",
        ),
    ],
)
def test_what_no_row_knows_goes_by_its_status(
    status: int, text: str, kind: str, meaning: str
) -> None:
    verdict = judge_status(status, text)
    assert (verdict.kind, verdict.meaning) == (kind, meaning)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 20s. You can increase it.", 20.0),
        ("Please try again in 7m12.5s.", 432.5),
        ("try again in 1h2m", 3720.0),
        ("Try again in 6ms.", 0.006),
        ("Please wait 2 hours, 3 minutes", 7380.0),
        ("It resets in 1 day.", 86400.0),
        ('{"details": [{"retryDelay": "34.5s"}]}', 34.5),
        ('{"error": {"retry_after": 12}}', 12.0),
        ("retry 3 times", None),
        ('{"retry_after": -5}', None),
        ('{"retry_after": NaN}', None),
        ("[" * 100_000 + "try again in 5s", None),
        ("nothing", None),
    ],
)
def test_how_long_a_provider_asks_to_wait(text: str, seconds: float | None) -> None:
    assert read_refusal(429, text).wait == seconds


def test_a_wait_beyond_the_patience_is_no_throttle() -> None:
    verdict = judge_status(429, "Rate limit reached. Please try again in 20m.")
    assert within(verdict, 1200.0) == verdict
    beyond = within(verdict, 600.0)
    assert (beyond.kind, beyond.meaning) == ("permanent", "throttled for long")
    assert "asks to wait 1200 seconds" in beyond.cause


UNSUPPORTED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
NEW = "--sampling.max-completion-tokens"


@pytest.mark.parametrize(
    ("message", "param", "says"),
    [
        ("'max_tokens' is too large: 32768.", None, "lower --sampling.max-tokens"),
        (
            UNSUPPORTED,
            "max_tokens",
            "set --sampling.max-completion-tokens instead of --sampling.max-tokens",
        ),
        ("temperature must be at least 0", None, "raise --sampling.temperature"),
        (
            "max_tokens must be greater than thinking.budget_tokens",
            None,
            "raise --sampling.max-tokens",
        ),
        (
            "'temperature' does not support 0 with this model",
            "temperature",
            "leave out --sampling.temperature, or change it",
        ),
        ("messages must alternate", "messages", ""),
    ],
)
def test_the_advice_names_the_option_and_the_direction(
    message: str, param: str | None, says: str
) -> None:
    body: dict[str, Any] = {"error": {"message": message, "param": param}}
    verdict = judge_status(400, json.dumps(body))
    assert advice(verdict, "--sampling.") == says


def test_advice_about_what_is_too_long_is_none() -> None:
    assert advice(Verdict("measured", "max_tokens", 400, meaning="too long"), "--sampling.") == ""
