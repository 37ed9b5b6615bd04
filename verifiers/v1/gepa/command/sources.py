"""Where a run's settings come from on the command line: flags and `@` files.

People bring what they have for `vf-eval`: `--env.` flags, files with an `[env]` table, the config
that an eval saved. Here all of it becomes one form, flat flags and flat settings, before anything
is parsed, so that the parser's precedence (flags over files) holds whichever form was used.
"""

import json
import os
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import AliasChoices
from pydantic_config import cli

from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.gepa.config import CONFIG_FILE, GEPAConfig, narrow
from verifiers.v1.gepa.settings.settings import EnvironmentVariables, env_ids, fold_env
from verifiers.v1.utils.generic import deep_merge
from verifiers.v1.utils.setting_mistakes import block_flags
from verifiers.v1.utils.texts import decode, is_text

PROMPT_FLAG, GUIDANCE_FLAG = "--initial-prompt", "--reflection-guidance"

EVAL_IDENTITY = "run"
"""An eval's run block names the eval's own directory, which a run must not write into."""


EVAL_VIEW = "rich"
"""An eval's view is a table of options, or none; a run's is there or not."""


class SourceError(ValueError):
    """A flag or file that can't be read as settings."""


def parse_config(argv: list[str]) -> tuple[GEPAConfig, list[str]]:
    """The config that `argv` and the files it names describe, and what was ignored, in words.

    Raises `SourceError` for what can't be read, what the host's loaders raise for an unknown id,
    and `pydantic_config`'s `ConfigFileError` for settings that don't validate.
    """
    flags, settings, notes = read_sources(argv)
    config_type = narrow(GEPAConfig, *named_ids(flags, settings))
    _let_flags_switch(settings, flags)
    if "--resume" in flags:
        _let_endpoints_move(settings)
        _stay_in_place(settings, argv)
    with tempfile.TemporaryDirectory() as folder:
        # The parser layers files under flags; what the files said goes to it as one file.
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings, default=str), encoding="ascii")
        return cli(config_type, args=["@", str(path), *flags]), notes


def read_sources(argv: list[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Flat flags, the merged settings of the `@` files, and what was ignored in them. A file behind
    the flag of a block (`--sampling @ FILE`) is that block's, and wins over those of the whole;
    behind anything else it is of the whole."""
    tokens, files = _parted(flat_flags(argv))
    # Which options are blocks depends on the taskset, which a file may name.
    blocks = _blocks(tokens, [file for file in files if file.flag is None])
    blocks = _blocks(tokens, [file for file in files if file.flag not in blocks])
    settings: dict[str, Any] = {}
    notes: list[str] = []
    for file in files:
        if file.flag not in blocks:
            loaded, ignored = _flattened(file)
            settings = deep_merge(settings, loaded)
            if ignored:
                notes.append(f"{file.path}: ignored what only an eval has: {', '.join(ignored)}")
    for file in files:
        if file.flag in blocks:
            part = file.content
            for key in reversed(file.flag.removeprefix("--").replace("-", "_").split(".")):
                part = {key: part}
            settings = deep_merge(settings, part)
    taken = {file.position for file in files if file.flag in blocks}
    return [token for place, token in enumerate(tokens) if place not in taken], settings, notes


@dataclass(frozen=True)
class _File:
    """A file that the command line names."""

    path: str
    content: Any
    flag: str | None
    """The flag right in front of it, which it may belong to, ..."""
    position: int
    """... and where that stands."""


def _parted(tokens: list[str]) -> tuple[list[str], list[_File]]:
    """The tokens without `@ FILE` and `@FILE`, and the files."""
    rest: list[str] = []
    files: list[_File] = []
    before = None
    words = iter(tokens)
    for token in words:
        if not token.startswith("@"):
            rest.append(token)
            before = token if token.startswith("--") and "=" not in token else None
            continue
        path = token[1:] or next(words, "")
        if not path:
            raise SourceError("@ must be followed by the path of a TOML or JSON file")
        files.append(_File(path, _read_file(Path(path)), before, len(rest) - 1))
        before = None
    return rest, files


def _blocks(flags: list[str], files: list[_File]) -> set[str]:
    """The flags of blocks, of the taskset and env that these name."""
    settings: dict[str, Any] = {}
    for file in files:
        settings = deep_merge(settings, _flattened(file)[0])
    return block_flags(narrow(GEPAConfig, *named_ids(flags, settings)))


def flat_flags(argv: list[str]) -> list[str]:
    """`argv` with the taskset id (a bare word that no flag precedes) as a flag, `--env.x` as `--x`,
    and a text (the prompt, the guidance) attached to its flag, so that it can't be taken for a flag
    or a file of settings. Raises `SourceError` where one setting is given in both spellings with
    different values."""
    tokens = list(argv)
    first = 0
    while first < len(tokens) and tokens[first].startswith("@"):
        first += 2 if tokens[first] == "@" else 1
    if first < len(tokens) and not tokens[first].startswith("-"):
        tokens.insert(first, "--taskset.id")
    flat: list[str] = []
    seen: dict[str, tuple[str, list[str]]] = {}
    for flag, values in _groups(tokens):
        if flag is None:
            flat += values
            continue
        name, given = _flat_name(flag), values
        if (text := _text_flag(flag)) and values:
            given, others = _given_text(text, values)
            flat += [f"{text}={given[0]}", *others]
        elif attached_text := _text_flag(flag.partition("=")[0]):
            name = _decoded(attached_text, name)
            flat += [name, *values]
        else:
            flat += [*([] if name == "--env" else [name]), *values]
        key, equals, attached = name.partition("=")
        key = key.replace("_", "-")
        value = [attached] if equals else _values(given, text is not None)
        spelling, earlier = seen.setdefault(key, (flag, value))
        if spelling.partition("=")[0] != flag.partition("=")[0] and earlier != value:
            raise SourceError(
                f"{key[2:]} is set twice, with different values: {spelling} {' '.join(earlier)} "
                f"and {flag} {' '.join(value)}; drop one"
            )
        if key in ("--taskset.id", "--id") and earlier != value:
            raise SourceError(
                f"{key} is set twice, to {' '.join(earlier)} and {' '.join(value)} (a leading bare "
                "word is the taskset's id too); drop one"
            )
    return flat


def named_ids(flags: list[str], settings: dict[str, Any]) -> tuple[str, str]:
    """The taskset id and env id: a flag's, else a file's."""
    taskset, env = env_ids(settings)
    return _flag_value(flags, "--taskset.id") or taskset, _flag_value(flags, "--id") or env


def _groups(tokens: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Each `--flag` with the tokens up to the next one; what stands before the first has no flag.
    The token after the flag of a text is that text, whatever it looks like."""
    flag: str | None = None
    values: list[str] = []
    for token in tokens:
        text = flag is not None and _text_flag(flag) is not None and not values
        if token.startswith("--") and not text:
            if flag is not None or values:
                yield flag, values
            flag, values = token, []
        else:
            values.append(token)
    if flag is not None or values:
        yield flag, values


def _values(given: list[str], text: bool) -> list[str]:
    """A flag's own among the words that follow it: up to a short flag, without files. A text is as
    it is."""
    if text:
        return given
    values = []
    words = iter(given)
    for word in words:
        if word[:1] == "-" and word[1:2].isalpha():
            break
        if word == "@":
            next(words, None)
        elif not word.startswith("@"):
            values.append(word)
    return values


def _flat_name(flag: str) -> str:
    for prefix, flat in (("--env.", "--"), ("--no-env.", "--no-")):
        if flag.startswith(prefix):
            return flat + flag.removeprefix(prefix)
    return flag


def _text_flag(flag: str) -> str | None:
    """The option that a flag sets if its value is a text, in its own spelling."""
    name = _flat_name(flag).replace("_", "-")
    return name if name in (PROMPT_FLAG, GUIDANCE_FLAG) else None


def _given_text(flag: str, values: list[str]) -> tuple[list[str], list[str]]:
    """The text among the words behind its flag, as the only one of a list, and the others."""
    if values[0] != "@" or not values[1:]:
        return [_decoded(flag, values[0])], values[1:]
    if flag == PROMPT_FLAG:
        raise SourceError(
            f"{PROMPT_FLAG} takes the prompt itself: to start from the text of a file, use "
            f"--taskset.system-prompt {values[1]}"
        )
    return [_decoded(flag, f"@{values[1]}")], values[2:]


def _decoded(flag: str, text: str) -> str:
    """A command-line argument as the UTF-8 that was typed: in an ASCII locale, Python hands over
    its bytes as surrogates."""
    if is_text(text):
        return text
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{flag} is not UTF-8 text: {error}") from error


def _read_file(path: Path) -> Any:
    try:
        text = decode(path.read_bytes(), f"config file {path}")
    except OSError as error:
        raise SourceError(f"config file {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(str(error)) from error
    if path.suffix not in (".json", ".toml"):
        raise SourceError(f"config file {path}: only .toml and .json files are read")
    try:
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"config file {path} is broken: {error}") from error


def _flattened(file: _File) -> tuple[dict[str, Any], list[str]]:
    """A file's settings in flat form, and the keys that only an eval has."""
    settings = file.content
    if not isinstance(settings, dict):
        raise SourceError(f"config file {file.path} must hold a table of settings")
    ignored = sorted(_eval_keys() & set(settings))
    if not isinstance(settings.get(EVAL_VIEW, False), bool):
        ignored = sorted([*ignored, EVAL_VIEW])
    if ignored and EVAL_IDENTITY in settings:
        ignored.append(EVAL_IDENTITY)
    kept = {key: value for key, value in settings.items() if key not in ignored}
    try:
        flat = fold_env(kept)
    except ValueError as error:
        raise SourceError(f"config file {file.path}: {error}") from error
    if ignored:  # an eval writes its defaults out: no limit was chosen by nobody
        timeout = flat.get("timeout")
        if isinstance(timeout, dict) and timeout.get("episode", 0) is None:
            flat["timeout"] = {key: value for key, value in timeout.items() if key != "episode"}
    return flat, ignored


def _eval_keys() -> set[str]:
    """The keys of an eval's config that a run has no use for, aliases included."""
    keys: set[str] = set()
    for name, info in EvalConfig.model_fields.items():
        if name in GEPAConfig.model_fields or name == "env":
            continue
        alias = info.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [alias]
        keys |= {name, *(choice for choice in names if isinstance(choice, str))}
    return keys


def _let_flags_switch(settings: dict[str, Any], flags: list[str]) -> None:
    """Where a flag names another `id` or `type` for a block than a file does, the file's block is
    that other plugin's and goes."""
    for position, token in enumerate(flags):
        name, equals, value = token.partition("=")
        path = name.removeprefix("--").replace("-", "_").split(".")
        if not name.startswith("--") or path[-1] not in ("id", "type") or len(path) < 2:
            continue
        if not equals:
            value = flags[position + 1] if position + 1 < len(flags) else ""
        owner: Any = settings
        for key in path[:-2]:
            owner = owner.get(key) if isinstance(owner, dict) else None
        block = owner.get(path[-2]) if isinstance(owner, dict) else None
        if isinstance(block, dict) and block.get(path[-1], value) != value:
            owner[path[-2]] = {}


def _let_endpoints_move(settings: dict[str, Any]) -> None:
    """A resumed run's saved config holds the endpoints of then; where the environment names some,
    those are the ones of now."""
    env = EnvironmentVariables()
    if env.task_endpoints or env.vllm_base_url:
        settings.pop("task_endpoints", None)
        _drop(settings, "client", "base_url")
    if env.reflection_model_base_url:
        _drop(settings, "reflection_client", "base_url")


def _stay_in_place(settings: dict[str, Any], argv: list[str]) -> None:
    """`gepa @ <run>/configs/resolved/gepa.json --resume` means the run that the file lies in, also
    where that was copied or moved since."""
    for token in argv:
        path = Path(token.removeprefix("@"))
        if path.name and path.match(CONFIG_FILE) and path.is_file():
            run_dir = path.resolve().parents[2]
            settings["output_dir"] = str(run_dir.parent)
            settings["run"] = {"name": run_dir.name}


def _drop(settings: dict[str, Any], block: str, key: str) -> None:
    if isinstance(settings.get(block), dict):
        settings[block].pop(key, None)


def _flag_value(flags: list[str], name: str) -> str:
    for position, token in enumerate(flags):
        if token.startswith(f"{name}="):
            return token.removeprefix(f"{name}=")
        if token == name and position + 1 < len(flags):
            return flags[position + 1]
    return ""
