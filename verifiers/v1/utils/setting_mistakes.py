"""What to tell a person whose settings a config refuses: which one, what is wrong, what to do.

pydantic names a field by its place in the models, and the command line's parser adds a guess of its
own; a person wrote a flag or a key of a file, and wants that back in one line.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

NEAR = 0.7
"""How alike (`difflib`'s ratio) the last parts of two flags in one block must be."""

NEAR_WORD = 0.8
"""How alike two words of names must be to count as the same."""

SUGGESTED = 3
"""Suggestions that are given where several are as near."""


def explain_settings(
    error: ValidationError, config_type: type[BaseModel], command: str
) -> list[str]:
    """A line per setting that `config_type` refused; `command` is the one that lists them all."""
    return [_explain_setting(dict(detail), config_type, command) for detail in error.errors()]


def explain_stray(args: Sequence[str], config_type: type[BaseModel]) -> str | None:
    """Where a word among `args` stands behind a switch, which takes none: what to write instead."""
    switches = _switches(config_type)
    for before, word in pairwise(args):
        name = switches.get(before)
        if name is not None and not word.startswith(("-", "@")) and word not in SWITCHED:
            block, dot, last = name.rpartition(".")
            off = f"--no-{block}{dot}{last}"
            return (
                f"{before} {word}: {before} is a switch and takes no value: write --{name} or "
                f"{off}; what the command is for comes before the first flag"
            )
    return None


def block_flags(config_type: type[BaseModel]) -> set[str]:
    """The flags of options that are tables or lists, so that a file can hold one."""
    return {flag for flag, info in _fields(config_type) if _is_block(info.annotation)}


def _is_block(annotation: object) -> bool:
    if _models(annotation) or (get_origin(annotation) or annotation) in (dict, list):
        return True
    return any(_is_block(part) for part in get_args(annotation))


SWITCHED = frozenset({"true", "True", "1", "false", "False", "0"})
"""What the parser takes for a switch's value."""


def _explain_setting(detail: dict[str, Any], config_type: type[BaseModel], command: str) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    path, typed = _path(detail["loc"], config_type)
    given = detail.get("input")
    if detail["type"] == "extra_forbidden":
        while isinstance(given, dict) and len(given) == 1:  # `--blok.name` has made a block
            ((inner, given),) = given.items()
            path.append(str(inner))
    flag = "--" + ".".join(path).replace("_", "-")
    if detail["type"] == "extra_forbidden":
        wrong = f"{flag} (in a file: {'.'.join(path)}) is no option"
        known = list(dict.fromkeys(name for name, info in _fields(config_type) if _is_flag(info)))
        if flag in known and any("-" in part for part in path):
            return f"{wrong}: did you mean {'.'.join(path).replace('-', '_')}?"
        if flag in known and typed:
            return f"{wrong} with {typed}"
        return f"{wrong}: {_hint(flag, given, config_type, known, command)}"
    if detail["type"] == "missing":
        return f"{flag} is missing"
    shown = "" if isinstance(given, dict | list | BaseModel) else f" (got {given!r})"
    return f"{flag}: {message}{shown}"


def _path(loc: Sequence[object], model: type[BaseModel]) -> tuple[list[str], str]:
    """The names in `loc` that a person writes, and how the last block on the way that has types
    got its own, as `--block.type kind`: pydantic puts that in between, as if it were a field."""
    path: list[str] = []
    models, typed = [model], ""
    for part in loc:
        tagged = [kind for kind in models if len(models) > 1 and _type_name(kind) == part]
        if tagged:
            models, typed = tagged, f"--{'.'.join(path).replace('_', '-')}.type {part}"
            continue
        path.append(str(part))
        fields = [kind.model_fields.get(str(part)) for kind in models]
        models = [one for info in fields if info is not None for one in _models(info.annotation)]
    return path, typed


def _hint(
    flag: str, given: object, config_type: type[BaseModel], known: list[str], command: str
) -> str:
    """What may have been meant by a flag that is none. Where it was written without a value, it is
    rather one of an option's choices than an option."""
    choices = _choices(config_type)
    wanted = flag[2:].replace("-", "_")
    bare = given is True
    near = _near(flag, known)
    if wanted in choices and (bare or not near):
        return f"did you mean {choices[wanted]} {wanted}?"
    if near:
        return f"did you mean {' or '.join(near)}?"
    begun = [choice for choice in choices if bare and choice.startswith(f"{wanted}_")]
    if begun:
        return f"did you mean {choices[begun[0]]} {begun[0]}?"
    return f"`{command}` lists them all"


def _near(flag: str, known: list[str]) -> list[str]:
    """The flags that `flag` is plausibly a slip of, the likeliest alone, or a few that are as
    likely: where some hold all of its words and few others, the shortest of those."""
    words = _words(flag)
    holding = {name: len(_words(name)) for name in known if words <= _words(name)}
    least = min(holding.values(), default=0)
    if 0 < least <= 2 * len(words):
        return [name for name, size in holding.items() if size == least][:SUGGESTED]
    plausible = {name: _likeness(flag, name) for name in known if _is_near(flag, name)}
    best = max(plausible.values(), default=0.0)
    return [name for name, likeness in plausible.items() if likeness == best][:SUGGESTED]


def _is_near(flag: str, other: str) -> bool:
    (block, last), (other_block, other_last) = _split(flag), _split(other)
    if _likeness(last, other_last) >= NEAR and (
        block == other_block or _likeness(block, other_block) >= NEAR_WORD
    ):
        return True
    if flag.replace(".", "-") == other.replace(".", "-"):
        return True
    words, other_words = last.split("-"), other_last.split("-")
    if not all(any(_same_word(one, two) for two in other_words) for one in words):
        return False
    # A name that was cut short must still be most of the option's, and one that lacks its block all
    # of it.
    least = 0.5 if block == other_block else 1.0
    return block in ("", other_block) and len(words) >= least * len(other_words)


def _words(flag: str) -> set[str]:
    return {*re.split(r"[-.]", flag.removeprefix("--"))}


def _split(flag: str) -> tuple[str, str]:
    block, _, last = flag.removeprefix("--").rpartition(".")
    return block, last


def _same_word(one: str, two: str) -> bool:
    return one == two or (min(len(one), len(two)) > 3 and _likeness(one, two) >= NEAR_WORD)


def _likeness(one: str, two: str) -> float:
    return difflib.SequenceMatcher(None, one, two).ratio()


def _choices(config_type: type[BaseModel]) -> dict[str, str]:
    """The words that an option takes -> its flag. Those of blocks are left out: `high` or `auto`
    may be of several."""
    return {
        choice: flag
        for flag, info in reversed(list(_fields(config_type)))
        if get_origin(info.annotation) is Literal and "." not in flag
        for choice in get_args(info.annotation)
        if isinstance(choice, str)
    }


def _switches(config_type: type[BaseModel]) -> dict[str, str]:
    """Every spelling of every switch -> its name."""
    switches: dict[str, str] = {}
    for flag, info in _fields(config_type):
        if info.annotation is bool:
            name = flag[2:]
            switches |= {flag: name, f"--no-{name}": name}
            alias = info.validation_alias
            for short in alias.choices if isinstance(alias, AliasChoices) else []:
                if isinstance(short, str) and len(short) == 1:
                    switches[f"-{short}"] = name
    return switches


def _fields(model: type[BaseModel], prefix: str = "--") -> Iterator[tuple[str, FieldInfo]]:
    """Every flag of `model`, blocks included, in dotted form."""
    for name, info in model.model_fields.items():
        flag = prefix + name.replace("_", "-")
        yield flag, info
        if get_origin(info.annotation) is not list:
            for kind in _models(info.annotation):
                yield from _fields(kind, f"{flag}.")


def _is_flag(info: FieldInfo) -> bool:
    """A list of blocks is written in a file."""
    return not (get_origin(info.annotation) is list and _models(info.annotation))


def _type_name(model: type[BaseModel]) -> object:
    info = model.model_fields.get("type")
    return info.default if info is not None else None


def _models(annotation: object) -> list[type[BaseModel]]:
    """The models that a field of this annotation can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
