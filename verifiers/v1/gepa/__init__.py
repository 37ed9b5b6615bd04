"""GEPA for verifiers: evolve an agent's system prompt, and show that it got better."""

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.runner import run_gepa

__all__ = ["GEPAAdapter", "GEPAConfig", "run_gepa"]
