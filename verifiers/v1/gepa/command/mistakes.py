"""What to tell a person whose command can't run: what is wrong, where, what to do."""

from pydantic import ValidationError
from pydantic_config.cli import ConfigFileError

from verifiers.v1.gepa.command.sources import SourceError, named_ids, read_sources
from verifiers.v1.gepa.config import GEPAConfig, narrow
from verifiers.v1.utils.setting_mistakes import explain_settings, explain_stray

OURS = (ConfigFileError, SourceError, ValueError)
"""Errors whose text is already written for a person."""


def explain(error: BaseException, args: list[str]) -> list[str]:
    """What was wrong in `args`, a line per mistake. `error` is what parsing them, loading the
    plugins that they name or checking the run has raised."""
    cause = error.__cause__ if isinstance(error, ConfigFileError) else error
    if isinstance(error, ConfigFileError | ValidationError):
        flags, settings, _ = read_sources(args)
        config_type = narrow(GEPAConfig, *named_ids(flags, settings))
        if isinstance(cause, ValidationError):
            return explain_settings(cause, config_type, "gepa <taskset-id> -h")
        if stray := explain_stray(flags, config_type):
            return [stray]
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
