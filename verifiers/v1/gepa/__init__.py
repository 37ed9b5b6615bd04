"""GEPA for verifiers: evolve an agent's system prompt, and show that it got better.

The names are looked up when they are first used: `gepa -h` and a dry run need few of the modules,
and what the others import (scipy, gepa, matplotlib) takes seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiers.v1.gepa.adapter import GEPAAdapter
    from verifiers.v1.gepa.config import GEPAConfig
    from verifiers.v1.gepa.report.outcome import Outcome
    from verifiers.v1.gepa.runner import GEPAError, RunInterrupted, run_gepa

__all__ = ["GEPAAdapter", "GEPAConfig", "GEPAError", "Outcome", "RunInterrupted", "run_gepa"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    homes = {
        "GEPAAdapter": "adapter",
        "GEPAConfig": "config",
        "GEPAError": "runner",
        "Outcome": "report.outcome",
        "RunInterrupted": "runner",
        "run_gepa": "runner",
    }
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
