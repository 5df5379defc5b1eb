"""Every exception the engine raises on purpose.

Owns the tree below and nothing else. Raised anywhere in the engine; translated once, by the
server's middleware (request errors → HTTP 4xx) and by the command line (model and
configuration errors → one sentence and an exit code). The planner has a tree of its own.

    EngineError
    ├── ConfigError                 an engine setting that cannot be
    ├── ModelError                  the model folder cannot be served
    │   ├── ModelNotFoundError      no such folder, or a file is missing from it
    │   ├── UnsupportedModelError   an architecture or feature we do not run
    │   ├── InvalidModelError       config.json contradicts itself or lacks a field
    │   ├── TokenizerError          no tokenizer, a damaged one, or one that needs foreign code
    │   └── CheckpointError         safetensors: corrupt, missing, left-over or misshapen
    ├── RequestError                this request cannot be served; the next one can
    │   ├── InvalidRequestError     a parameter out of range; names it
    │   ├── PromptTooLongError      prompt + max_tokens exceed the model length
    │   ├── CannotEverFitError      needs more KV blocks than the whole pool has
    │   ├── DuplicateRequestError   the id is already in use
    │   ├── ChatTemplateError       the model's template refuses these messages
    │   ├── InvalidMediaError       a picture or video that cannot be fetched, read or placed
    │   └── UnknownModelError       the request names a model that is not served here
    ├── UnavailableError            sound, but not now; says after how many seconds to try again
    │   ├── NotReadyError           the model is still loading
    │   ├── QueueFullError          as many requests wait as may
    │   └── ShuttingDownError       the server was told to stop
    ├── RequestTimeoutError         the answer took longer than the request or the server allows
    ├── StepFailedError             the step that ran this request failed; the next one can go well
    └── OutOfBlocksError            our own bug: the pool was asked for more than it has free
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class EngineError(Exception):
    """Root of the tree: catch this to catch everything we raise on purpose."""


class ConfigError(EngineError):
    """An engine setting that cannot be; `field` and `value` say which."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field}={value!r}: {why}")
        self.field = field
        self.value = value


class ModelError(EngineError):
    """The model folder cannot be served."""


class ModelNotFoundError(ModelError):
    """No such folder, or a file that every model folder has is missing from it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class UnsupportedModelError(ModelError):
    """A model that is sound but that this engine does not run."""


class InvalidModelError(ModelError):
    """config.json contradicts itself, lacks a field or has one of the wrong type."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"config.json: {field}={value!r}: {why}")
        self.field = field
        self.value = value


class TokenizerError(ModelError):
    """The folder's tokenizer is missing, damaged, or needs code that we do not run."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the tokenizer in {path} {why}")
        self.path = path


class CheckpointError(ModelError):
    """A safetensors file is damaged or does not hold exactly the model's parameters."""

    def __init__(self, message: str, *, names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class RequestError(EngineError):
    """This request cannot be served; `param` is the request's field to blame, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A request parameter that is out of range."""

    def __init__(self, param: str, value: object, why: str) -> None:
        super().__init__(f"{param}={value!r}: {why}", param=param)
        self.value = value


class PromptTooLongError(RequestError):
    """Prompt plus max_tokens exceed what one sequence may hold."""

    def __init__(
        self,
        *,
        num_prompt_tokens: int,
        max_tokens: int | None,
        max_model_len: int,
        is_lower_bound: bool = False,  # it was too long to be worth counting
    ) -> None:
        least = "at least " if is_lower_bound else ""
        together = "" if max_tokens is None else (
            f" and max_tokens is {max_tokens}, together {num_prompt_tokens + max_tokens}"
        )  # fmt: skip
        super().__init__(
            f"the prompt has {least}{num_prompt_tokens} tokens{together}, but this model is "
            f"served with at most {max_model_len} tokens per request, prompt and answer "
            f"together: shorten the prompt{'' if max_tokens is None else ' or lower max_tokens'}",
            param="messages" if num_prompt_tokens >= max_model_len else "max_tokens",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len


class CannotEverFitError(RequestError):
    """The request needs more KV blocks than the pool has in all."""

    def __init__(self, *, num_tokens: int, needed: int, total: int, block_size: int) -> None:
        super().__init__(
            f"{num_tokens} tokens (prompt + max_tokens) need {needed} KV blocks of {block_size} "
            f"tokens, but the whole pool has {total} ({total * block_size} tokens): shorten the "
            f"prompt or lower max_tokens to at most {total * block_size} tokens in all",
            param="max_tokens",
        )
        self.num_tokens = num_tokens
        self.needed = needed
        self.total = total


class DuplicateRequestError(RequestError):
    """A request id that is already in use."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is already in use: choose another")
        self.request_id = request_id


class ChatTemplateError(RequestError):
    """The model's chat template refuses these messages, or the model has none."""


class InvalidMediaError(RequestError):
    """A picture or video that cannot be used; the message begins with what the client called it."""

    def __init__(self, item: str, why: str) -> None:
        super().__init__(f"{item}: {why}", param=item)
        self.item = item
        self.why = why


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    def __init__(self, name: str, *, served: Iterable[str]) -> None:
        names = ", ".join(served)
        super().__init__(
            f"the model {name!r} does not exist here: this server has {names}", param="model"
        )


class UnavailableError(EngineError):
    """The request is sound but cannot be taken now."""

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NotReadyError(UnavailableError):
    """The model is still loading."""


class QueueFullError(UnavailableError):
    """As many requests wait as may."""

    def __init__(self, *, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"the server is busy: it already has {limit} requests running or waiting "
            f"(--max-num-seqs + --max-queue); try again in {retry_after_seconds} s",
            retry_after_seconds=retry_after_seconds,
        )
        self.limit = limit


class ShuttingDownError(UnavailableError):
    """The server was told to stop and takes no new requests."""


class StepFailedError(EngineError):
    """The step that ran this request failed; the log has the cause, the user does not."""


class RequestTimeoutError(EngineError):
    """The answer was not complete in the time that the request or the server allows."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__(
            f"the answer was not complete after {seconds:g} s, which is the limit of "
            "X-Request-Timeout or of the server's --request-timeout: ask for fewer tokens, or "
            "stream, to have what is written in time"
        )
        self.seconds = seconds


class OutOfBlocksError(EngineError):
    """The pool was asked for more blocks than are free; callers check first, so this is a bug."""

    def __init__(self, *, wanted: int, free: int) -> None:
        super().__init__(f"asked the block pool for {wanted} blocks with {free} free")
        self.wanted = wanted
        self.free = free
