"""What a reason to finish says."""

import pytest

from direct_chat.finish import BROKEN, CALLS, CUT, FILTERED, WHOLE, finish_of


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("stop", "whole"),
        ("STOP", "whole"),
        ("eos_token", "whole"),
        ("length", "cut"),
        ("MAX_TOKENS", "cut"),
        ("MALFORMED_FUNCTION_CALL", "cut"),
        ("content_filter", "filtered"),
        ("SAFETY", "filtered"),
        ("refusal", "filtered"),
        ("error", "broken"),
        ("network_error", "broken"),
        ("insufficient_system_resource", "broken"),
        ("Cancelled", "broken"),
        ("OTHER", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_reason_is_read_in_any_case(reason: str | None, meaning: str) -> None:
    assert finish_of(reason) == meaning
    assert finish_of(reason, tools=True) == meaning


@pytest.mark.parametrize("reason", sorted(CALLS))
def test_calls_end_an_answer_only_where_there_are_tools(reason: str) -> None:
    assert finish_of(reason, tools=True) == "whole"
    assert finish_of(reason) == "unknown"


def test_no_reason_has_two_meanings() -> None:
    rows = [WHOLE, CALLS, CUT, FILTERED, BROKEN]
    assert len(frozenset().union(*rows)) == sum(map(len, rows))
    assert all(reason == reason.lower() for row in rows for reason in row)
