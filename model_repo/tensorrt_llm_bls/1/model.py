"""Text in, text out: `conch.backend.bls` does the work."""

from conch.backend.bls import BlsModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
