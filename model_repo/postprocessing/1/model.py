"""Token ids in, text out: `conch.backend.text_out` does the work."""

from conch.backend.text_out import TextOutModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
