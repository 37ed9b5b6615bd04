"""Files on the command line: where they stand, how they were saved, and where one is no file."""

import codecs
import json
from pathlib import Path

import pytest

from tests.support import BASE, fenced, run, scripted, student_requests, teacher_requests
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.command.sources import SourceError, parse_config, read_sources

BUDGET = ["--max-total-rollouts", "12"]

RUN = 'model = "m"\n[taskset]\nid = "board-v1"\nsize = 3\n[sampling]\ntemperature = 1.0\n'


def saved(folder: Path, text: str, name: str = "run.toml") -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


# Where they stand

PLACES = [
    ["FILE", "--no-rich", "--select.shuffle", "-n", "5"],
    ["FILE", "board-v1", "--no-rich", "--select.shuffle", "-n", "5"],
    ["board-v1", "FILE", "--no-rich", "--select.shuffle", "-n", "5"],
    ["--no-rich", "FILE", "--select.shuffle", "-n", "5"],
    ["--rich", "false", "FILE", "-s", "-n", "5"],
    ["--no-rich", "--select.shuffle", "FILE", "-n", "5"],
    ["--no-rich", "--select.shuffle", "True", "FILE", "-n", "5"],
    ["--no-rich", "-s", "FILE", "-n", "5"],
    ["--no-rich", "-s", "-n", "5", "FILE"],
    ["--no-rich", "-s", "--select.limit=5", "FILE"],
    ["--no-rich", "-s", "-n", "5", "FILE", "FILE"],
    ["--no-rich", "-s", "-n", "5", "--no-taskset.messages", "FILE"],
    ["--no-rich", "-s", "-n", "5", "--env.taskset.size", "3", "FILE", "--taskset.size", "3"],
    ["board-v1", "FILE", "--no-rich", "-s", "-n", "5", "--taskset.id", "board-v1"],
]


@pytest.mark.parametrize("form", ["@ {}", "@{}"])
@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_a_file_is_read_the_same_wherever_it_stands(
    tmp_path: Path, words: list[str], form: str
) -> None:
    file = form.format(saved(tmp_path, RUN)).split(" ")
    argv = [part for word in words for part in (file if word == "FILE" else [word])]
    config, _ = parse_config(argv)
    flags = ["--no-rich", "--select.shuffle", "-n", "5"]
    expected, _ = parse_config(["@", saved(tmp_path, RUN, "same.toml"), *flags])
    assert config.model_dump(exclude={"run"}) == expected.model_dump(exclude={"run"})
    assert (config.model, config.rich, config.select.shuffle) == ("m", False, True)


@pytest.mark.parametrize("form", ["@ {}", "@{}"])
def test_a_file_behind_a_block_is_that_blocks_and_wins(tmp_path: Path, form: str) -> None:
    part = form.format(saved(tmp_path, "temperature = 0.5\n", "part.toml")).split(" ")
    whole = form.format(saved(tmp_path, RUN)).split(" ")
    for argv in ([*whole, "--sampling", *part], ["--env.sampling", *part, *whole]):
        config, _ = parse_config(argv)
        assert (config.model, config.sampling.temperature) == ("m", 0.5)
    config, _ = parse_config(["--sampling", *part, *whole, "--sampling.temperature", "0.25"])
    assert config.sampling.temperature == 0.25


def test_the_blocks_of_a_taskset_that_a_file_names_take_files(tmp_path: Path) -> None:
    task = saved(tmp_path, '{"low": 0.5}', "task.json")
    judges = saved(tmp_path, '[{"id": "reference"}]', "judges.json")
    argv = ["--taskset.task", f"@{task}", "--taskset.task.judges", "@", judges]
    config, _ = parse_config([*argv, "--no-rich", "@", saved(tmp_path, RUN)])
    assert config.taskset.task.low == 0.5  # type: ignore[attr-defined]
    assert [judge.id for judge in config.taskset.task.judges] == ["reference"]


def test_a_value_that_is_missing_is_not_looked_for_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", "@", saved(tmp_path, RUN)]) == 2
    assert last_line(capsys) == "gepa: --model requires a value"


# How they were saved


@pytest.mark.parametrize("name", ["run.toml", "run.json"])
def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path: Path, name: str) -> None:
    text = RUN if name == "run.toml" else json.dumps({"taskset": {"id": "board-v1"}, "model": "m"})
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
    (tmp_path / "part.toml").write_bytes(codecs.BOM_UTF8 + b"top_p = 0.5")
    argv = ["@", str(tmp_path / name), "--sampling", "@", str(tmp_path / "part.toml")]
    config, _ = parse_config(argv)
    assert (config.model, config.sampling.top_p) == ("m", 0.5)


OTHERS = {
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
}


@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("name", ["run.toml", "run.json"])
def test_a_config_in_another_encoding_is_refused_by_name(
    tmp_path: Path, name: str, encoding: str
) -> None:
    (tmp_path / name).write_bytes(RUN.encode(encoding))
    with pytest.raises(SourceError, match=rf"{name} is {OTHERS[encoding]}: save it as UTF-8"):
        read_sources(["@", str(tmp_path / name)])


def test_a_byte_order_mark_is_no_part_of_the_prompt_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(codecs.BOM_UTF8 + "Réponds.\r\n".encode())
    echo = scripted(teacher=lambda _: fenced("Answer. GOOD"))
    with echo as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "--taskset.system-prompt", str(file))
    assert done.status == 0
    assert student_requests(endpoint)[0].system == "Réponds.\r\n"
    assert "\ufeff" not in teacher_requests(endpoint)[0].user
    assert done.candidates[0] == "Réponds.\r\n"
    err = capsys.readouterr().err
    assert err.count("prompt.txt starts with a byte order mark, which is no part of") == 1


@pytest.mark.parametrize("encoding", OTHERS)
def test_a_prompt_in_another_encoding_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("Answer.\r\n".encode(encoding))
    with scripted() as endpoint:
        flag = ["--taskset.system-prompt", str(file)]
        assert run(endpoint, tmp_path, *BUDGET, *flag).status == 2
        assert endpoint.requests == []
    assert last_line(capsys) == f"gepa: {file} is {OTHERS[encoding]}: save it as UTF-8"


# Where one is no file

PATHS = {
    "a flag": (["--initial-prompt", "prompt.txt"], "", "--initial-prompt takes the prompt itself"),
    "a flag with @": (["--initial-prompt", "@prompt.txt"], "", "and prompt.txt is a file"),
    "a flag with @ and a blank": (
        ["--initial-prompt", "@", "prompt.txt"],
        "",
        "use --taskset.system-prompt prompt.txt",
    ),
    "a path": (["--initial-prompt", "./prompt.txt"], "", "use --taskset.system-prompt ./prompt."),
    "TOML": ([], 'initial_prompt = "prompt.txt"', "use --taskset.system-prompt prompt.txt"),
    "protect": (
        ["--protect", "prompt.txt"],
        "",
        "--protect takes the texts themselves",
    ),
    "a text for a file": (
        ["--taskset.system-prompt", "You are helpful."],
        "",
        "--taskset.system-prompt You are helpful. can't be read (No such file or directory): it "
        "takes a file; a text is given with --initial-prompt",
    ),
    "a folder for a file": (["--taskset.system-prompt", "."], "", "(Is a directory): it takes a"),
}


@pytest.mark.parametrize("case", PATHS)
def test_a_path_in_place_of_a_text_is_refused_before_anything_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    flags, text, words = PATHS[case]
    (tmp_path / "prompt.txt").write_text("Answer. GOOD", "utf-8")
    file = saved(tmp_path, text)
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, *flags, "@", file)
        assert endpoint.requests == []
    assert done.status == 2
    assert words in last_line(capsys)
    assert not done.folder.exists()


def test_a_file_that_the_prompt_names_may_be_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("read", "utf-8")
    flags = ["--initial-prompt", "Look into README.md.", "--protect", "README.md"]
    assert main([*BASE, *BUDGET, *flags, "--dry-run", "-o", str(tmp_path)]) == 0


@pytest.mark.parametrize("text", ["prompt.txt\nand more", "x" * 5_000, "a\0b", "absent.txt"])
def test_any_other_text_is_a_prompt(tmp_path: Path, text: str) -> None:
    flags = [f"--initial-prompt={text}", "--dry-run", "-o", str(tmp_path)]
    assert main([*BASE, *BUDGET, *flags]) == 0
