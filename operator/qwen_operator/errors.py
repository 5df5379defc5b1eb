"""Every exception the operator raises on purpose.

Raised by the modules below the controller; translated once, there, into a condition and an event or
into a retry.

    OperatorError
    ├── SettingsError          the operator's own flags or environment
    ├── InvalidSpecError       a QwenDeployment that cannot be meant, with field and way out
    ├── NoGpuFitsError         several kinds of GPU, and the model fits on none
    └── ApiError               the Kubernetes API said no
        ├── UnavailableError   … because it is not there or busy: try again
        └── RefusedError       … because of what was asked: trying again changes nothing
"""

from __future__ import annotations


class OperatorError(Exception):
    """Root of the tree: catch this to catch everything raised on purpose."""


class SettingsError(OperatorError):
    """A flag or environment variable of the operator that cannot be."""


class InvalidSpecError(OperatorError):
    """A field of a QwenDeployment's spec that cannot be; the message is fit for a user."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class NoGpuFitsError(OperatorError):
    """The model fits on no kind of GPU in the cluster; the message has the figures of each."""


class ApiError(OperatorError):
    """The Kubernetes API did not do what was asked.

    Attributes:
        status: the HTTP status; 0 where no answer came.
        reason: the API's CamelCase reason, such as Invalid; may be empty.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class UnavailableError(ApiError):
    """No answer, a server error, or too many requests."""


class RefusedError(ApiError):
    """A client error: forbidden, invalid, in conflict."""
