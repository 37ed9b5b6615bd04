"""What a run says beforehand about the length of an episode."""

from pathlib import Path

import pytest

from tests.support import BASE, run, scripted

TOOLED = ["tooled-v1", *BASE[1:]]
UNBOUNDED = "has tools, and nothing bounds what an episode may cost"

SAID = {
    "nothing": (TOOLED, UNBOUNDED, "only its time ends it, after 1800 s (--timeout.episode)"),
    "its own time": (
        [*TOOLED, "--agent.timeout.rollout", "60"],
        UNBOUNDED,
        "only its time ends it, after 60 s (--agent.timeout.rollout)",
    ),
    "no time": (
        [*TOOLED, "--timeout.episode", "None"],
        UNBOUNDED,
        "not even its time ends it; set --agent.max-turns or --agent.max-total-tokens",
    ),
    "turns": (
        [*TOOLED, "--agent.max-turns", "7"],
        "agent 'agent' has tools: an episode ends after 7 model calls (--agent.max-turns)",
        "",
    ),
    "tokens": (
        [*TOOLED, "--agent.max-turns", "1", "--agent.max-output-tokens", "900"],
        "an episode ends after 1 model call (--agent.max-turns) or the call that reaches 900 "
        "output tokens (--agent.max-output-tokens, each counted once",
        "",
    ),
    "a harness with tools of its own": (
        [*BASE, "--agent.harness.id", "bash", "--agent.runtime.type", "subprocess"],
        UNBOUNDED,
        "",
    ),
}


@pytest.mark.parametrize(("base", "first", "second"), SAID.values(), ids=SAID)
def test_what_bounds_an_episode_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: list[str], first: str, second: str
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--dry-run", base=base)
    said = capsys.readouterr().err
    assert done.status == 0
    assert first in said
    assert second in said
    assert (UNBOUNDED in said) == (first == UNBOUNDED)
    assert endpoint.requests == []


def test_an_agent_without_tools_answers_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        assert run(endpoint, tmp_path, "--dry-run").status == 0
    assert "has tools" not in capsys.readouterr().err
