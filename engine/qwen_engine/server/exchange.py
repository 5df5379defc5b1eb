"""What both completion routes do around an answer: ids, headers, usage, the line in the log."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from qwen_engine.errors import RequestError, RequestTimeoutError
from qwen_engine.generation import Deadline
from qwen_engine.server.answer import Answer
from qwen_engine.server.protocol.bodies import usage_body
from qwen_engine.server.protocol.fields import describe
from qwen_engine.server.state import STATE

log = logging.getLogger(__name__)

IGNORED_HEADER = "X-Ignored-Fields"
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds
_SHOWN_FIELDS = 20
_NOT_IN_A_HEADER = re.compile(r"[^\w.\[\]-]", re.ASCII)


def new_request_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def read_deadline(request: web.Request) -> Deadline | None:
    """Return when the answer has to be complete: the sooner of the request's and the server's.

    Raises:
        RequestError: the request's header is no time.
    """
    limit = request.app[STATE].settings.request_timeout_seconds or math.inf
    given = request.headers.get(TIMEOUT_HEADER)
    seconds = limit if given is None else min(limit, _parse_seconds(given))
    if seconds == math.inf:
        return None
    return Deadline(asyncio.get_running_loop().time() + seconds, seconds)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        why = f"must be a number of seconds above 0, not {describe(text)}"
        raise RequestError(f"{TIMEOUT_HEADER} {why}", param=TIMEOUT_HEADER)
    return seconds


@asynccontextmanager
async def until(deadline: Deadline | None) -> AsyncIterator[None]:
    """Bound what is done before the engine has the request, such as fetching its pictures.

    Raises:
        RequestTimeoutError: the deadline has come.
    """
    try:
        async with asyncio.timeout_at(deadline.at if deadline else None):
            yield
    except TimeoutError as error:
        if deadline is None:
            raise
        raise RequestTimeoutError(seconds=deadline.seconds) from error


def response_headers(request_id: str, ignored: Sequence[str]) -> dict[str, str]:
    """Return the headers of every answer; the names of ignored fields are the user's own text."""
    headers = {"X-Request-Id": request_id}
    if ignored:
        names = [_NOT_IN_A_HEADER.sub("?", name)[:60] for name in ignored[:_SHOWN_FIELDS]]
        headers[IGNORED_HEADER] = ", ".join(names)
        log.debug("%s: ignored %s", request_id, headers[IGNORED_HEADER])
    return headers


def usage_of(answers: Iterable[Answer], *, num_choices: int = 1) -> dict[str, Any]:
    """Return the account of a request: of `num_choices` answers in a row, the prompt once."""
    answers = list(answers)
    prompts = answers[::num_choices]
    return usage_body(
        prompt_tokens=sum(answer.num_prompt_tokens for answer in prompts),
        completion_tokens=sum(answer.num_output_tokens for answer in answers),
        cached_tokens=sum(answer.num_cached_tokens for answer in prompts),
        reasoning_tokens=_sum_known(answer.num_reasoning_tokens for answer in answers),
    )


def _sum_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def finished(request: web.Request, request_id: str, answers: Sequence[Answer]) -> None:
    """Log the one line that a request leaves."""
    usage = usage_of(answers)
    first = min((a.seconds_to_first_token or a.seconds for a in answers), default=0.0)
    log.info(
        "%s %s prompt=%d cached=%d output=%d finish=%s first=%.3fs total=%.3fs",
        request.path,
        request_id,
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        ",".join(sorted({answer.finish_reason or "aborted" for answer in answers})) or "echo",
        first,
        max((answer.seconds for answer in answers), default=0.0),
    )
