"""A harness that takes no system prompt: the chat of `direct-chat`, its prompt folded."""

from typing import ClassVar

from direct_chat import DirectChatConfig, DirectChatHarness

__all__ = ["FoldingHarness"]


class FoldingHarness(DirectChatHarness):
    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = False


FoldingConfig = DirectChatConfig
