"""What to tell a person whose command can't run: what is wrong, where, what to do."""

import difflib
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_config.cli import ConfigFileError

from verifiers.v1.gepa.config import GEPAConfig, narrow
from verifiers.v1.gepa.sources import SourceError, named_ids, read_sources

OURS = (ConfigFileError, SourceError, ValueError)
"""Errors whose text is already written for a person."""


def explain(error: BaseException, args: list[str]) -> list[str]:
    """What was wrong in `args`, a line per mistake. `error` is what parsing them, loading the
    plugins that they name or checking the run has raised."""
    cause = error.__cause__ if isinstance(error, ConfigFileError) else error
    if isinstance(cause, ValidationError):
        flags, settings, _ = read_sources(args)
        config_type = narrow(GEPAConfig, *named_ids(flags, settings))
        return [_explain_setting(dict(detail), config_type) for detail in cause.errors()]
    if isinstance(error, ModuleNotFoundError):
        inner = error.__cause__
        while inner is not None and inner.__cause__ is not None:
            inner = inner.__cause__
        missing = getattr(inner, "name", None)
        if missing and repr(missing) not in str(error):
            return [f"{error} It was found, but it imports {missing!r}, which is not installed."]
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename}: {error.strerror}"]
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not isinstance(error, OURS) or not lines:
        lines[:1] = [f"{type(error).__name__}: {lines[0] if lines else 'no message'}"]
    return lines


def _explain_setting(detail: dict[str, object], config_type: type[GEPAConfig]) -> str:
    loc = detail["loc"]
    assert isinstance(loc, tuple)
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not loc:
        return message
    path, kind = _path(loc, config_type)
    flag = "--" + ".".join(path).replace("_", "-")
    if detail["type"] == "extra_forbidden":
        known = _flags(config_type)
        wrong = f"{flag} (in a file: {'.'.join(path)}) is no option"
        if flag in known:
            return f"{wrong} with {flag.rpartition('.')[0]}.type {kind}"
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "`gepa <taskset-id> -h` lists them all"
        return f"{wrong}: {hint}"
    given = detail.get("input")
    shown = "" if isinstance(given, dict | list | BaseModel) else f" (got {given!r})"
    return f"{flag}: {message}{shown}"


def _path(loc: tuple[object, ...], model: type[BaseModel]) -> tuple[list[str], object]:
    """The names in `loc` that a person writes, and the type of the last block that has types:
    pydantic puts that in between, as if it were a field."""
    path: list[str] = []
    models, chosen = [model], None
    for part in loc:
        tagged = [kind for kind in models if len(models) > 1 and _type_name(kind) == part]
        if tagged:
            models, chosen = tagged, part
            continue
        path.append(str(part))
        fields = [kind.model_fields.get(str(part)) for kind in models]
        models = [one for info in fields if info is not None for one in _models(info.annotation)]
    return path, chosen


def _type_name(model: type[BaseModel]) -> object:
    info = model.model_fields.get("type")
    return info.default if info is not None else None


def _models(annotation: object) -> list[type[BaseModel]]:
    """The models that a field of this annotation can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _flags(model: type[BaseModel], prefix: str = "--") -> list[str]:
    """Every flag of `model`, blocks included, in dotted form."""
    flags = []
    for name, info in model.model_fields.items():
        flag = prefix + name.replace("_", "-")
        flags.append(flag)
        if get_origin(info.annotation) is not list:
            for kind in _models(info.annotation):
                flags += _flags(kind, f"{flag}.")
    return flags
