"""What to tell a person whose command can't run: what is wrong, where, what to do."""

import difflib

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
        return [_explain_setting(dict(detail), args) for detail in cause.errors()]
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


def _explain_setting(detail: dict[str, object], args: list[str]) -> str:
    loc = detail["loc"]
    assert isinstance(loc, tuple)
    flag = "--" + ".".join(str(part) for part in loc).replace("_", "-")
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not loc:
        return message
    if detail["type"] == "extra_forbidden":
        flags, settings, _ = read_sources(args)
        known = _flags(narrow(GEPAConfig, *named_ids(flags, settings)))
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "`gepa <taskset-id> -h` lists them all"
        return f"{flag} (in a file: {'.'.join(map(str, loc))}) is no option: {hint}"
    given = detail.get("input")
    shown = "" if isinstance(given, dict | list | BaseModel) else f" (got {given!r})"
    return f"{flag}: {message}{shown}"


def _flags(model: type[BaseModel], prefix: str = "--") -> list[str]:
    """Every flag of `model`, blocks included, in dotted form."""
    flags = []
    for name, info in model.model_fields.items():
        flag = prefix + name.replace("_", "-")
        flags.append(flag)
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            flags += _flags(kind, f"{flag}.")
    return flags
