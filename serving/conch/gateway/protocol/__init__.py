"""The bodies of OpenAI's endpoints, with OpenAI's names, and vLLM's names for what goes beyond them.

What is not listed here is refused by name. Taken but without effect: `user`, `metadata`, `safety_identifier`
and `prompt_cache_key`, which only label a request.
"""

from conch.gateway.protocol.chat import UNDONE_CHAT, ChatRequest
from conch.gateway.protocol.completion import UNDONE_COMPLETION, CompletionRequest
from conch.gateway.protocol.generation import Generation
from conch.gateway.protocol.messages import Message
from conch.gateway.protocol.tools import Tool, ToolChoice

__all__ = [
    "UNDONE_CHAT",
    "UNDONE_COMPLETION",
    "ChatRequest",
    "CompletionRequest",
    "Generation",
    "Message",
    "Tool",
    "ToolChoice",
]
