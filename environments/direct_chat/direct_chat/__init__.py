"""`direct-chat`: a harness that runs the chat loop in the calling process."""

from direct_chat.dialect import register
from direct_chat.harness import DirectChatConfig, DirectChatHarness

register()

__all__ = ["DirectChatConfig", "DirectChatHarness"]
