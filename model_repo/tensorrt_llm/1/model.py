"""Token ids in, token ids out: `conch.backend.generation` does the work."""

from conch.backend.generation import GenerationModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
