"""How many rollouts share one of the host's interception servers.

All model calls go through these servers, each of which has an HTTP client per endpoint, and that
client looks at all its connections for every request: a few cost less than many. A server costs
20 ms and 1 MB, and a tunnel where a rollout or a tool server runs elsewhere; the host's default is
made for those. Where it is left as it is and nothing needs a tunnel, rollouts are spread further.
"""

import contextlib
from collections.abc import AsyncIterator

from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.env import Env
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.rollouts.relay import student_urls, use_relay
from verifiers.v1.interception import (
    ElasticInterceptionPoolConfig,
    InterceptionConfig,
    requires_tunnel,
)
from verifiers.v1.runtimes import runtime_is_local

FEW = 8
"""Connections of a client that cost little to look at."""

SERVERS = 32
"""No more servers than these for the sake of `FEW`."""


@contextlib.asynccontextmanager
async def serving(env: Env, config: GEPAConfig) -> AsyncIterator[None]:
    """`env.serving()`, with `interception_of` the run."""
    use_relay(*student_urls(config))
    own = env.config
    env.config = own.model_copy(update={"interception": interception_of(env, config)})
    try:
        async with env.serving():
            yield
    finally:
        env.config = own


def interception_of(env: Env, config: GEPAConfig) -> InterceptionConfig:
    """The env's interception, with fewer rollouts per server where that pays."""
    chosen: InterceptionConfig = env.config.interception
    usual = ElasticInterceptionPoolConfig()
    if chosen != usual or _needs_tunnels(env):
        return chosen
    in_flight = config.max_concurrent or usual.multiplex * SERVERS
    spread = max(FEW * len(config.endpoints), -(-in_flight // SERVERS))
    return ElasticInterceptionPoolConfig(multiplex=min(spread, usual.multiplex))


def _needs_tunnels(env: Env) -> bool:
    """Whether an agent or a tool server is where it can't reach this machine."""
    agents = agent_config_fields(env.config).values()
    local = all(runtime_is_local(agent.runtime) for agent in agents)
    tasks = type(env.taskset).task_type().toolsets(env.taskset.config.task)
    shared = [server.config for server in env.taskset.toolsets(env.taskset.config)]
    return requires_tunnel(local, [server.config for server in tasks]) or any(
        not one.url and not runtime_is_local(one.runtime) for one in shared
    )
