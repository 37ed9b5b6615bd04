"""`GEPAConfig` and where its settings come from."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support_intent_v1 import SupportIntentTaskset  # noqa: F401 - the taskset must be importable
from tests import support  # noqa: F401 - makes board-v1 importable
from verifiers.v1.gepa.command.sources import SourceError, flat_flags, parse_config, read_sources
from verifiers_gepa import GEPAConfig


def parsed(*argv: str) -> GEPAConfig:
    return parse_config(list(argv))[0]


def toml(folder: Path, text: str, name: str = "run.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# Narrowing


def test_narrowed_from_python() -> None:
    config = GEPAConfig(taskset={"id": "board-v1", "size": 3}, agent={"max_turns": 2})
    assert type(config.taskset).__name__ == "BoardConfig"
    assert config.taskset.size == 3  # type: ignore[attr-defined]
    assert config.agent.max_turns == 2  # type: ignore[attr-defined]
    assert isinstance(config, GEPAConfig)


def test_narrowed_by_validation() -> None:
    config = GEPAConfig.model_validate({"env": {"taskset": {"id": "board-v1", "size": 3}}})
    assert config.taskset.size == 3  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match=r"taskset\.sise\n"):
        GEPAConfig.model_validate({"taskset": {"id": "board-v1", "sise": 3}})


def test_narrowed_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    assert parsed("board-v1", "--taskset.size", "3").taskset.size == 3  # type: ignore[attr-defined]
    file = toml(tmp_path, '[taskset]\nid = "board-v1"\nsize = 3\n')
    assert parsed("@", file).taskset.size == 3  # type: ignore[attr-defined]
    assert parsed("@", file, "--taskset.size", "4").taskset.size == 4  # type: ignore[attr-defined]
    saved = tmp_path / "run.json"
    saved.write_text(json.dumps({"taskset": {"id": "board-v1", "size": 5}}), encoding="utf-8")
    assert parsed("@", str(saved)).taskset.size == 5  # type: ignore[attr-defined]


def test_a_taskset_with_its_own_seat_keeps_it() -> None:
    config = GEPAConfig(taskset={"id": "support-intent-v1"})
    assert config.agent.harness.id == "direct-chat"  # type: ignore[attr-defined]
    assert config.agent.runtime.type == "subprocess"  # type: ignore[attr-defined]


# One setting, two spellings


def test_env_flags_and_tables_mean_the_same_as_flat_ones(tmp_path: Path) -> None:
    flat = parsed("board-v1", "--agent.max-turns", "2", "--taskset.size", "3")
    nested = parsed("board-v1", "--env.agent.max-turns", "2", "--env.taskset.size", "3")
    file = '[env.taskset]\nid = "board-v1"\nsize = 3\n[env.agent]\nmax_turns = 2\n'
    table = parsed("@", toml(tmp_path, file))
    for config in (nested, table):
        assert config.agent == flat.agent  # type: ignore[attr-defined]
        assert config.taskset == flat.taskset


def test_both_spellings_with_one_value_are_fine(tmp_path: Path) -> None:
    config = parsed("board-v1", "--env.taskset.size", "3", "--taskset.size", "3")
    assert config.taskset.size == 3  # type: ignore[attr-defined]


def test_both_spellings_with_different_values_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"taskset\.size is set twice.*3.*4"):
        parsed("board-v1", "--env.taskset.size", "3", "--taskset.size=4")
    file = toml(tmp_path, "[taskset]\nsize = 3\n[env.taskset]\nsize = 4\n")
    with pytest.raises(SourceError, match=r"run\.toml: taskset\.size is set twice.*3.*4"):
        parsed("board-v1", "@", file)
    with pytest.raises(ValueError, match=r"taskset\.size is set twice"):
        GEPAConfig(taskset={"id": "board-v1", "size": 3}, env={"taskset": {"size": 4}})
    with pytest.raises(SourceError, match=r"--taskset\.id is set twice, to board-v1 and echo-v1"):
        parsed("board-v1", "--taskset.id", "echo-v1")


def test_a_flag_wins_over_a_file_in_either_spelling(tmp_path: Path) -> None:
    file = toml(tmp_path, 'model = "m"\n[env.taskset]\nid = "board-v1"\nsize = 3\n')
    assert parsed("@", file, "--taskset.size", "4").taskset.size == 4  # type: ignore[attr-defined]
    assert parsed("@", file, "-m", "other").model == "other"


def test_a_flag_that_switches_a_plugin_drops_the_files_options_of_the_other(
    tmp_path: Path,
) -> None:
    file = toml(
        tmp_path,
        '[taskset]\nid = "board-v1"\n[agent.runtime]\ntype = "docker"\nimage = "python:3.12"\n',
    )
    config = parsed("@", file, "--agent.runtime.type", "subprocess")
    assert config.agent.runtime.type == "subprocess"  # type: ignore[attr-defined]


# Files


def test_what_only_an_eval_has_is_ignored_once_and_named(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        'num_rollouts = 4\npush = false\nmodel = "m"\n[rich]\n[run]\nname = "eval"\n'
        '[env.taskset]\nid = "board-v1"\n',
    )
    config, notes = parse_config(["@", file])
    assert notes == [f"{file}: ignored what only an eval has: num_rollouts, push, rich, run"]
    assert config.model == "m"
    assert config.run.name != "eval"


def test_a_runs_own_file_keeps_its_name(tmp_path: Path) -> None:
    file = toml(tmp_path, '[run]\nname = "mine"\n[taskset]\nid = "board-v1"\n')
    assert parsed("@", file).run.name == "mine"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.toml", "a = ", r"run\.toml is broken"),
        ("run.json", "{", r"run\.json is broken"),
        ("run.json", "[1]", "must hold a table"),
        ("run.yaml", "a: 1", r"only \.toml and \.json"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        parsed("board-v1", "@", toml(tmp_path, text, name))
    with pytest.raises(SourceError, match="can't be read: No such file"):
        parsed("board-v1", "@", str(tmp_path / "absent.toml"))


def test_files_are_told_from_values_and_from_a_flags_own_file(tmp_path: Path) -> None:
    sampling = toml(tmp_path, "temperature = 0.5\n", "sampling.toml")
    config = parsed("board-v1", "--sampling", "@", sampling, "-m", "m")
    assert config.sampling.temperature == 0.5
    file = toml(tmp_path, 'model = "m"\n')
    assert parsed("board-v1", "--dry-run", "@", file).model == "m"
    assert parsed("board-v1", f"@{file}").model == "m"
    flags, settings, _ = read_sources(["board-v1", "-n", "3", "@", file])
    assert flags == ["--taskset.id", "board-v1", "-n", "3"]
    assert settings == {"model": "m"}


@pytest.mark.parametrize("text", ["--num-train", "@ x.toml", "-n", "a=b", "-h", "{x}", ""])
def test_no_text_of_a_prompt_is_taken_for_anything_else(text: str) -> None:
    config = parsed("board-v1", "--initial-prompt", text, "-n", "5")
    assert config.initial_prompt == text
    assert config.select.limit == 5


def test_a_positional_taskset_comes_first() -> None:
    assert flat_flags(["board-v1", "-m", "x"]) == ["--taskset.id", "board-v1", "-m", "x"]


# The environment


def test_the_environment_fills_what_nothing_else_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", "http://vllm/v1")
    monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", "http://teacher/v1")
    monkeypatch.setenv("REFLECTION_MODEL_ID", "teacher")
    config = parsed("board-v1")
    assert [endpoint.base_url for endpoint in config.endpoints] == ["http://vllm/v1"]
    model, endpoint = config.teacher
    assert (model, endpoint.base_url) == ("teacher", "http://teacher/v1")

    monkeypatch.setenv("TASK_ENDPOINTS", "http://a/v1, http://b/v1,")
    config = parsed("board-v1")
    assert [one.base_url for one in config.endpoints] == ["http://a/v1", "http://b/v1"]

    file = toml(tmp_path, '[client]\nbase_url = "http://file/v1"\n[taskset]\nid = "board-v1"\n')
    config = parsed("@", file)
    assert [one.base_url for one in config.endpoints] == ["http://file/v1"]
    config = parsed("@", file, "--client.base-url", "http://flag/v1", "--reflection-model", "t")
    assert [one.base_url for one in config.endpoints] == ["http://flag/v1"]
    assert config.teacher[0] == "t"


def test_a_resolved_config_means_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_ENDPOINTS", "http://a/v1,http://b/v1")
    config = parsed("board-v1", "--local", "--taskset.size", "7", "--initial-prompt", "a\r\n\u2028")
    monkeypatch.delenv("TASK_ENDPOINTS")
    saved = tmp_path / "gepa.json"
    saved.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    again = parsed("@", str(saved))
    assert again.model_dump() == config.model_dump()
    assert again.initial_prompt == "a\r\n\u2028"


# Seats


def test_local_seats_an_agent_that_names_nothing() -> None:
    config = parsed("board-v1", "--local")
    agent: Any = config.agent  # type: ignore[attr-defined]
    assert (agent.harness.id, agent.runtime.type) == ("direct-chat", "subprocess")
    assert "--direct-chat--" in str(config.run_dir)


def test_local_leaves_a_named_harness_or_runtime_alone() -> None:
    agent: Any = parsed("board-v1", "--local", "--agent.harness.id", "null").agent  # type: ignore[attr-defined]
    assert agent.harness.id == "null"
    agent = parsed("board-v1", "--local", "--agent.runtime.type", "docker").agent  # type: ignore[attr-defined]
    assert (agent.harness, agent.runtime.type) == (None, "docker")


def test_a_prompt_without_a_utf8_form_is_refused() -> None:
    with pytest.raises(ValidationError, match="lone surrogate"):
        GEPAConfig(initial_prompt="\ud83d")
