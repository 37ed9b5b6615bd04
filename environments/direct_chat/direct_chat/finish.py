"""What a server's reason to finish says about its answer.

OpenAI has five reasons. Servers that speak its format send many more: those of the model's own
API, of the engine behind it, or of a gateway that passes them on as they came.
"""

from typing import Literal

Finish = Literal["whole", "cut", "filtered", "broken", "unknown"]

WHOLE = frozenset(
    {
        "stop",  # OpenAI; Gemini says STOP
        "end_turn",  # Anthropic, Bedrock
        "stop_sequence",  # Anthropic, Bedrock, Cohere, TGI, watsonx
        "eos",  # Together
        "eos_token",  # TGI, watsonx
        "end_of_text",
        "endoftext",  # AI21
        "complete",  # Cohere
        "completed",  # OpenAI Responses
        "finish",  # older Bedrock models
        "finished",
    }
)
"""The model ended its answer."""

CALLS = frozenset(
    {
        "tool_calls",  # OpenAI
        "function_call",  # OpenAI, before there were tools
        "tool_call",  # Cohere
        "tool_use",  # Anthropic, Bedrock
    }
)
"""The model ended its answer with calls, and waits for their results."""

CUT = frozenset(
    {
        "length",  # OpenAI
        "max_tokens",  # Anthropic, Bedrock, Cohere, watsonx; Gemini says MAX_TOKENS
        "max_output_tokens",  # OpenAI Responses
        "max_length",
        "token_limit",  # watsonx
        "model_length",  # Mistral
        "model_context_window_exceeded",  # Anthropic, Bedrock, Z.ai
        "context_length_exceeded",
        "error_limit",  # Cohere: the context window
        "repetition",  # vLLM: the model went round in circles
        "pause_turn",  # Anthropic
        "malformed_function_call",  # Gemini
        "unexpected_tool_call",  # Gemini
        "too_many_tool_calls",  # Gemini
        "malformed_response",  # Gemini
        "malformed_model_output",  # Bedrock
        "malformed_tool_use",  # Bedrock
    }
)
"""A limit ended the answer, or the model's own mistake did."""

FILTERED = frozenset(
    {
        "content_filter",  # OpenAI, Azure
        "content_filtered",  # Bedrock
        "guardrail_intervened",  # Bedrock
        "refusal",  # Anthropic
        "sensitive",  # Z.ai
        "safety",  # Gemini
        "recitation",  # Gemini
        "blocklist",  # Gemini
        "prohibited_content",  # Gemini
        "spii",  # Gemini: personal data
        "language",  # Gemini: one that it does not support
        "image_safety",  # Gemini
        "error_toxic",  # Cohere
    }
)
"""What was asked or answered is not allowed."""

BROKEN = frozenset(
    {
        "error",  # OpenRouter, vLLM, Mistral, Cohere, watsonx
        "failed",  # OpenAI Responses
        "network_error",  # Z.ai
        "insufficient_system_resource",  # DeepSeek
        "abort",  # vLLM, SGLang
        "aborted",
        "cancel",
        "canceled",
        "cancelled",  # watsonx, OpenAI Responses
        "user_cancel",  # Cohere
        "interrupted",
        "timeout",  # Cohere
        "time_limit",  # watsonx
        "not_finished",  # watsonx
        "incomplete",
        "server_error",
        "internal_error",
        "overloaded",
    }
)
"""The server failed while it answered: the text is no answer of the model's."""

MEANINGS: dict[str, Finish] = {
    **dict.fromkeys(WHOLE, "whole"),
    **dict.fromkeys(CUT, "cut"),
    **dict.fromkeys(FILTERED, "filtered"),
    **dict.fromkeys(BROKEN, "broken"),
}


def finish_of(reason: str | None, *, tools: bool = False) -> Finish:
    """What `reason` says, in any case of its letters. "unknown" where there is none, where it is
    in no table, and where it says that the model waits for results of `tools` that it doesn't have:
    such an answer must not be taken for a whole one."""
    name = reason.strip().lower().replace("-", "_") if isinstance(reason, str) else ""
    if name in CALLS:
        return "whole" if tools else "unknown"
    return MEANINGS.get(name, "unknown")
