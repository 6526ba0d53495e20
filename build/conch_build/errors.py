"""Every error Conch raises on purpose: one tree for both packages.

    ConchError                      exit 1   HTTP 500   something in Conch itself
    ├── InputError                  exit 2   HTTP 400   what was given is wrong
    │   ├── PlanError                                   the plan file
    │   ├── CheckError                                  a plan that cannot work (all violations at once)
    │   ├── CheckpointError                             the model's files
    │   └── RequestError                                one generation request
    │       ├── UnsupportedError                        asks for what this backend cannot do
    │       └── NotFoundError                HTTP 404   no such model or request
    ├── BuildError                  exit 3              quantizing, compiling or packing failed
    │   ├── CompileError                                a backend refused the model
    │   ├── QualityError                                the build is worse than its plan allows
    │   └── StoreError                                  an artifact is damaged or in use
    ├── SetupError                  exit 4   HTTP 503   the machine lacks something
    └── ServiceError                exit 5   HTTP 502   a running server failed
        ├── UnavailableError                 HTTP 503   it is down, starting or draining
        ├── OverloadedError                  HTTP 429   its queue is full
        ├── DeadlineError           exit 6   HTTP 504   it did not answer in time
        └── CancelledError                   HTTP 499   the caller went away

A message says what is wrong, where, and what to do. Only the command line and the gateway turn an error
into an exit code or a status; everything else lets it pass.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ConchError(Exception):
    """Base of the tree: `what` is wrong, `where`, and the `fix` that a person can apply."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The whole sentence: `where: what. Fix.`"""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if not self.fix:
            return text
        return f"{text.rstrip('.')}. {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The error as `--json` prints it."""
        return {"error": type(self).__name__, "what": self.what, "where": self.where, "fix": self.fix}


class InputError(ConchError):
    """What was given is wrong."""

    exit_code = 2
    http_status = 400


class PlanError(InputError):
    """The plan file does not read as a plan."""


class CheckError(InputError):
    """A plan that cannot work; `violations` holds each one as `Violation.as_dict()` gives it."""

    def __init__(self, what: str, violations: list[dict[str, Any]]) -> None:
        self.violations = violations
        super().__init__(what)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "violations": self.violations}


class CheckpointError(InputError):
    """The model's files are missing, damaged, unsafe or cannot be compiled; `rule` names the check."""

    def __init__(
        self,
        what: str,
        *,
        rule: str = "checkpoint.unreadable",
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.rule = rule
        super().__init__(what, where=where, fix=fix)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "rule": self.rule}


class RequestError(InputError):
    """One generation request is wrong; `param` names the offending field, `code` is OpenAI's error code."""

    def __init__(
        self,
        what: str,
        *,
        param: str | None = None,
        code: str | None = None,
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.param = param
        self.code = code
        super().__init__(what, where=where, fix=fix)


class UnsupportedError(RequestError):
    """The request asks for something that this backend cannot do."""


class NotFoundError(RequestError):
    """No model, adapter or request of that name."""

    http_status = 404


class BuildError(ConchError):
    """Quantizing, compiling or packing failed."""

    exit_code = 3


class CompileError(BuildError):
    """A backend refused the model."""


class QualityError(BuildError):
    """The build is worse than its plan allows."""


class StoreError(BuildError):
    """An artifact is damaged, incomplete or in use."""


class SetupError(ConchError):
    """The machine lacks something that Conch needs."""

    exit_code = 4
    http_status = 503


class ServiceError(ConchError):
    """A running server failed."""

    exit_code = 5
    http_status = 502


class UnavailableError(ServiceError):
    """The server is down, starting or draining."""

    http_status = 503


class OverloadedError(ServiceError):
    """The server's queue is full; try again later."""

    http_status = 429


class DeadlineError(ServiceError):
    """The server did not answer in time."""

    exit_code = 6
    http_status = 504


class CancelledError(ServiceError):
    """The caller went away or withdrew the request."""

    http_status = 499
