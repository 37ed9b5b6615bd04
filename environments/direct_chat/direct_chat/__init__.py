"""`direct-chat`: a harness that runs the chat loop in the calling process."""

from direct_chat.harness import DirectChatConfig, DirectChatHarness

__all__ = ["DirectChatConfig", "DirectChatHarness"]
