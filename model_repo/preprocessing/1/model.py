"""Text in, token ids out: `conch.backend.text_in` does the work."""

from conch.backend.text_in import TextInModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
