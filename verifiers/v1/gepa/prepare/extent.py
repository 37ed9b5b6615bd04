"""How long one episode can get: what bounds the model calls that it makes.

An agent without tools answers once. One that has tools decides itself when it is done, and each of
its calls sends the whole conversation again: one episode that goes on for ever can cost more than
the rest of a run.
"""

import logging

import verifiers.v1 as vf
from verifiers.v1.configs.agent import AgentConfig, agent_config_fields
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.utils.loaders import harness_class

logger = logging.getLogger(__name__)

TOKEN_LIMITS = {
    "max_total_tokens": "tokens",
    "max_input_tokens": "input tokens",
    "max_output_tokens": "output tokens",
}
ONCE = "each counted once, though every call sends the conversation again"
"""How the host counts the tokens of its limits."""


def check_extent(env: vf.Env, config: GEPAConfig) -> list[str]:
    """Say what an episode may take at most. Returns a warning for each agent with tools whose model
    calls nothing bounds."""
    warnings = []
    harnesses = config.agent_harnesses()
    for name, agent in agent_config_fields(config).items():
        own_tools = harness_class(harnesses[name].id).EXECUTES_CODE
        if not own_tools and not _has_tools(env):
            continue
        flag = name.replace("_", "-")
        if bounds := _bounds(agent, flag):
            logger.info("agent %r has tools: an episode ends after %s", name, " or ".join(bounds))
            continue
        warnings.append(
            f"agent {name!r} has tools, and nothing bounds what an episode may cost: "
            f"{_time(agent, config, flag)}; set --{flag}.max-turns or --{flag}.max-total-tokens"
        )
    return warnings


def _has_tools(env: vf.Env) -> bool:
    taskset = env.taskset
    per_task = type(taskset).task_type().toolsets(taskset.config.task)
    return bool(per_task or taskset.toolsets(taskset.config))


def _bounds(agent: AgentConfig, flag: str) -> list[str]:
    """What the agent's limits allow. Those of tokens are looked at between two calls."""
    bounds = []
    if agent.max_turns is not None:
        calls = "model call" if agent.max_turns == 1 else "model calls"
        bounds.append(f"{agent.max_turns} {calls} (--{flag}.max-turns)")
    for limit, kind in TOKEN_LIMITS.items():
        if (tokens := getattr(agent, limit)) is not None:
            option = f"--{flag}.{limit.replace('_', '-')}"
            bounds.append(f"the call that reaches {tokens} {kind} ({option}, {ONCE})")
    return bounds


def _time(agent: AgentConfig, config: GEPAConfig, flag: str) -> str:
    """What ends an episode that makes one call after the other."""
    if agent.timeout.rollout is not None:
        seconds = f"{agent.timeout.rollout:g} s (--{flag}.timeout.rollout)"
        return f"only its time ends it, after {seconds}"
    if config.timeout.episode is not None:
        seconds = f"{config.timeout.episode:g} s (--timeout.episode)"
        return f"only its time ends it, after {seconds}, and then it is tried again"
    return "not even its time ends it"
