"""Every exception becomes an answer in OpenAI's form: the one place where that is decided.

A user sees a sentence, a field and a code, never a traceback; the log gets the traceback of what
we did not expect. Used as the outermost middleware, and by `stream` for errors after the headers
are out.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from qwen_engine.errors import (
    CannotEverFitError,
    NotReadyError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    StepFailedError,
    UnavailableError,
    UnknownModelError,
)
from qwen_engine.server.missing import explain_missing
from qwen_engine.server.protocol.bodies import error_body

log = logging.getLogger(__name__)

# OpenAI's clients send a request again after a 408, unless this says no (openai-python,
# _base_client.py, _should_retry); it would take as long again.
_DO_NOT_RETRY = {"X-Should-Retry": "false"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the user."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return error_body(self.message, kind=self.kind, param=self.param, code=self.code)

    def response(self) -> web.Response:
        return web.json_response(self.body(), status=self.status, headers=self.headers)


@web.middleware
async def failures_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        failure = explain(error, request)
        log.info("%s %s %d: %s", request.method, request.path, failure.status, failure.message)
        _let_go(error)
        return failure.response()


def _let_go(error: BaseException) -> None:
    """Empty the frames that an error went through.

    They hold the request's body and pictures, and often the error itself: such cycles stay until
    Python's collector looks for them, which goes by the number of objects and not by their size.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def explain(error: Exception, request: web.Request) -> Failure:
    """Return what the user is told of an exception."""
    match error:
        case RequestError():
            return _explain_request(error)
        case UnavailableError():
            return _explain_unavailable(error)
        case StepFailedError() | RequestTimeoutError():
            return _explain_ended(error)
        case web.HTTPException():
            return _explain_http(error, request)
        case ConnectionError():
            return Failure(499, "the client closed the connection")  # nobody is there to read it
    log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return Failure(500, "the server met an internal error", "server_error", code="internal_error")


def _explain_request(error: RequestError) -> Failure:
    match error:
        case UnknownModelError():
            return Failure(404, str(error), param="model", code="model_not_found")
        case PromptTooLongError() | CannotEverFitError():
            code = "context_length_exceeded"
            return Failure(400, str(error), param=error.param, code=code)
    return Failure(400, str(error), param=error.param)


def _explain_unavailable(error: UnavailableError) -> Failure:
    retry = {"Retry-After": str(error.retry_after_seconds)}
    if isinstance(error, QueueFullError):
        return Failure(429, str(error), "rate_limit_error", code="queue_full", headers=retry)
    code = "not_ready" if isinstance(error, NotReadyError) else "shutting_down"
    return Failure(503, str(error), "server_error", code=code, headers=retry)


def _explain_ended(error: StepFailedError | RequestTimeoutError) -> Failure:
    if isinstance(error, StepFailedError):
        return Failure(500, str(error), "server_error", code="step_failed")
    kind, code = "timeout_error", "request_timeout"
    return Failure(408, str(error), kind, code=code, headers=_DO_NOT_RETRY)


def _explain_http(error: web.HTTPException, request: web.Request) -> Failure:
    """Put aiohttp's own refusals (unknown path, wrong method, too large) into our form."""
    headers = {key: error.headers[key] for key in ("Allow", "Location") if key in error.headers}
    match error:
        case web.HTTPRequestEntityTooLarge():
            return too_large(request.app)
        case web.HTTPNotFound():
            return Failure(404, explain_missing(request.path), code="not_found")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path} answers {allowed}, not {request.method}"
            return Failure(405, message, code="method_not_allowed", headers=headers)
    return Failure(error.status, error.reason, headers=headers)


def too_large(app: web.Application) -> Failure:
    limit = app[MAX_BODY_BYTES]
    message = f"the request body is larger than the {limit:,} bytes that this server takes"
    # The rest of the body is not read, so the connection cannot be used again.
    return Failure(413, message, code="request_too_large", headers={"Connection": "close"})


MAX_BODY_BYTES = web.AppKey("max_body_bytes", int)
