"""The harness: what it supports, where it can run, and how one launch ends.

The host's `null` harness starts an interpreter per rollout to run a chat loop of a few
dozen lines. `Harness.launch` allows the loop to run in the calling process as long as
every model call goes through the interception endpoint, and that is all this harness does
differently: the trace is the same, the process is not started.
"""

import asyncio
from contextlib import AsyncExitStack

from openai import APIStatusError
from pydantic import model_validator

from direct_chat.answers import Json
from direct_chat.loop import NO_TOOLS, Endpoint, Tools, converse
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.errors import InterceptionError
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import connect_mcp
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace
from verifiers.v1.types import Messages

MCP_CONNECT_TIMEOUT = 60.0
"""Seconds to list the tools of all MCP servers, as in the host's chat program."""

NO_USABLE_CALL = "no_usable_tool_call"
"""The stop condition of a rollout whose tool calls led nowhere."""

COMPLETED = ProgramResult(exit_code=0, stdout="", stderr="")


class DirectChatConfig(HarnessConfig):
    """The host's harness config; `disabled_tools` names tools as the model sees them."""

    @model_validator(mode="after")
    def _reject_program_env(self) -> "DirectChatConfig":
        if self.env or self.forward_env:
            raise ValueError(
                "the direct-chat harness starts no program, so `env` and `forward_env` "
                "would have no effect; remove them"
            )
        return self


class DirectChatHarness(Harness[DirectChatConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime: Runtime) -> None:
        """Nothing to provision; refuses a runtime other than subprocess before tool
        servers and tunnels are started for it (recorded as a HarnessError)."""
        if runtime.type != "subprocess":
            raise ValueError(
                "the chat loop runs on the host, where the task's files and the endpoint "
                f"of a {runtime.type!r} runtime may be out of reach. Run it in the "
                "subprocess runtime (gepa: `--agent.runtime.type subprocess` or `--local`; "
                "vf-eval: `--env.agent.runtime.type subprocess`) or choose another harness"
            )

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Run the conversation to a reply without tool calls.

        A refused turn (a limit, a `@stop`), an exhausted context and tool calls that lead
        nowhere end it as success: all leave the transcript so far, which is scored. Other
        failed model calls raise `APIStatusError`, an unreachable endpoint `InterceptionError`.
        """
        system_prompt, prompt = self.resolve_prompt(data)
        messages = opening(system_prompt, prompt)
        target = Endpoint(endpoint, secret, ctx.model, tool_interception_url)
        async with AsyncExitStack() as stack:
            tools = await self._connect(mcp_urls, stack) if mcp_urls else NO_TOOLS
            try:
                if not await converse(target, messages, tools):
                    trace.stop(NO_USABLE_CALL)
            except APIStatusError as error:
                if error.status_code == 404 and not trace.calls:
                    raise InterceptionError(
                        "the interception does not know direct-chat, because it started before "
                        "direct_chat was imported: import that first"
                    ) from error
                if trace.stop_condition is None and not is_context_overflow(error):
                    raise
        return COMPLETED

    async def _connect(self, mcp_urls: dict[str, str], stack: AsyncExitStack) -> Tools:
        """The task's tools without the disabled ones, connected for the life of `stack`."""
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with asyncio.timeout(MCP_CONNECT_TIMEOUT):
            schemas, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
        disabled = set(self.config.disabled_tools or ())
        return Tools(
            [schema for schema in schemas if schema["function"]["name"] not in disabled],
            {name: target for name, target in dispatch.items() if name not in disabled},
            connections,
        )


def opening(system_prompt: str | None, prompt: str | Messages | None) -> list[Json]:
    """The wire messages a conversation starts with; empty prompts are left out."""
    messages: list[Json] = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    if isinstance(prompt, str):
        if prompt:
            messages.append({"role": "user", "content": prompt})
    elif prompt is not None:
        messages.extend(message_to_wire(message) for message in prompt)
    return messages
