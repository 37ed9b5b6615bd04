"""How many rollouts share an interception server, by where things run and how many there are."""

import asyncio
from typing import Any

import pytest

import verifiers.v1 as vf
from tests import support
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.rollouts.interception import interception_of, serving
from verifiers.v1.gepa.rollouts.workers import worker_config

REPLICAS = ["--task-endpoints", "http://a/v1", "http://b/v1"]


def multiplex(*argv: str) -> int:
    config, _ = parse_config([*argv, "-m", "student"])
    chosen: Any = interception_of(load_env(config), config)
    return int(chosen.multiplex)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], 8),
        (REPLICAS, 16),
        (["-c", "257"], 9),
        (["-c", "512"], 16),
        (["-c", "4096"], 32),
        (["-c", "None"], 32),
        (["--interception.multiplex", "4"], 4),
        (["--agent.runtime.type", "docker", "--agent.harness.id", "null"], 8),
        (["--agent.runtime.type", "prime", "--agent.harness.id", "null"], 32),
    ],
)
def test_few_share_a_server_where_none_needs_a_tunnel(flags: list[str], expected: int) -> None:
    assert multiplex("board-v1", "--local", *flags) == expected


def test_a_remote_tool_server_needs_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(support.ROOT / "tests"))
    argv = ["direct-chat-taskset", "--local", "--taskset.tools.runtime.type"]
    assert [multiplex(*argv, runtime) for runtime in ("subprocess", "prime")] == [8, 32]


def test_an_env_serves_so_and_keeps_its_config() -> None:
    config, _ = parse_config(["board-v1", "--local", "-m", "student"])
    env = vf.load_environment(config)
    own = env.config

    async def served() -> Any:
        async with serving(env, config):
            return env.config.interception

    assert asyncio.run(served()).multiplex == 8
    assert env.config is own
    assert own.interception.multiplex == 32
    assert worker_config(env, config)["interception"]["multiplex"] == 8
