"""What a user is told who asks for a path that is not here.

OpenAI's clients know many paths that this server does not have, as it writes text and nothing
else. Each is refused by name, with what to do instead. Used by `failures`.
"""

from __future__ import annotations

_ELSEWHERE = "this server writes text; use a server for that, beside this one"
_CHAT = "use /v1/chat/completions"
_STATELESS = "this server keeps nothing between requests"

# By the beginning of the path.
_KNOWN: dict[str, tuple[str, str]] = {
    "/v1/embeddings": ("embeddings are not made here", _ELSEWHERE),
    "/v1/audio": ("audio is neither heard nor spoken here", _ELSEWHERE),
    "/v1/images": ("images are not made here", _ELSEWHERE),
    "/v1/videos": ("videos are not made here", _ELSEWHERE),
    "/v1/moderations": ("nothing is moderated here", _ELSEWHERE),
    "/v1/rerank": ("nothing is ranked here", _ELSEWHERE),
    "/v1/score": ("nothing is scored here", _ELSEWHERE),
    "/v1/realtime": ("there is no realtime API here", f"{_CHAT} with stream: true"),
    "/v1/responses": ("the Responses API is not served here", _CHAT),
    "/v1/conversations": ("conversations are not kept here", f"{_STATELESS}; {_CHAT}"),
    "/v1/assistants": ("the Assistants API is not served here", f"{_STATELESS}; {_CHAT}"),
    "/v1/threads": ("the Assistants API is not served here", f"{_STATELESS}; {_CHAT}"),
    "/v1/messages": ("this is not Anthropic's API", _CHAT),
    "/v1/files": ("files are not kept here", _STATELESS),
    "/v1/uploads": ("files are not kept here", _STATELESS),
    "/v1/vector_stores": ("files are not kept here", _STATELESS),
    "/v1/batches": ("there is no batch API here", "send the requests at once: they run together"),
    "/v1/fine_tuning": ("nothing is trained here", "serve a checkpoint that was trained elsewhere"),
    "/v1/engines": ("this is OpenAI's API of before 2023", "use /v1/completions"),
}  # fmt: skip
# What a client asks for whose base URL lacks "/v1", or has it twice.
_API_PATHS = ("/chat/completions", "/completions", "/models", "/embeddings", "/responses")


def explain_missing(path: str) -> str:
    """Return a sentence that says what is not at `path`, and what helps."""
    for prefix, (what, way_out) in _KNOWN.items():
        if path == prefix or path.startswith(prefix + "/"):
            return f"{prefix}: {what}: {way_out}"
    message = f"there is nothing at {path[:200]}"
    if path.startswith(_API_PATHS) or path.startswith("/v1/v1/"):
        return f'{message}: a client\'s base URL has to end in "/v1", once'
    return message
