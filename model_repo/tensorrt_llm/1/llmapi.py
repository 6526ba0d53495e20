"""The same for the backend `pytorch`, packed as model.py: `conch.backend.llmapi` does the work."""

from conch.backend.llmapi.model import LlmApiModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
