"""The seat that `support-intent-v1` wants by default: a chat on this machine.

A message and its label need no tools and no sandbox, while the host's own default seat is a bash
agent in a remote one. Flags and config files still replace the harness and the runtime.
"""

from importlib.util import find_spec

import verifiers.v1 as vf


def default_agent() -> vf.AgentConfig:
    """`direct-chat` in the subprocess runtime where it is installed, else the host's default."""
    if find_spec("direct_chat") is None:
        return vf.AgentConfig()
    return vf.AgentConfig.model_validate(
        {"harness": {"id": "direct-chat"}, "runtime": {"type": "subprocess"}}
    )


class SupportIntentEnvConfig(vf.SingleAgentEnvConfig):
    agent: vf.AgentConfig = default_agent()
    """The one seat, a chat without tools in this process unless told otherwise."""


class SupportIntentEnv(vf.SingleAgentEnv, vf.Env[SupportIntentEnvConfig]):
    """One agent, one message; `vf.Env[...]` names the config whose default seat applies."""
