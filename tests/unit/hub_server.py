"""A stand-in for the model hub: the few routes that a download uses, on loopback.

Speaks what huggingface_hub expects of HF_ENDPOINT: model info, tree, and files with ETag and
ranges. Refusals are chosen by the repository's name.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_test"

_REFUSALS = {
    "org/gated": (403, "GatedRepo"),
    "org/hidden": (401, "RepoNotFound"),
    "org/broken": (503, ""),
}


class HubServer:
    """Serves the files of `repos` until `close`; counts the bytes sent of each file."""

    def __init__(self, repos: dict[str, dict[str, bytes]]) -> None:
        self.sent: Counter[str] = Counter()
        self.break_after: dict[str, int] = {}  # file name → bytes, once
        server = self

        class Handler(_Handler):
            hub = server
            files: ClassVar = repos

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    files: ClassVar[dict[str, dict[str, bytes]]]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None: ...

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            repo, _, rest = path[1:].partition("/resolve/")
            self._file(repo, rest.partition("/")[2])
        else:
            self._send(404, b"")

    def _api(self, path: str) -> None:
        repo = "/".join(path.split("/")[:2])
        if repo in _REFUSALS:
            status, code = _REFUSALS[repo]
            self._send(status, b"{}", {"X-Error-Code": code} if code else {})
        elif repo == "org/private" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repo not in self.files:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/revision/" in path and path.rpartition("/")[2] not in ("main", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            self._send(200, json.dumps(self._tree(repo)).encode())
        else:
            names = [{"rfilename": name} for name in self.files[repo]]
            self._send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": names}).encode())

    def _tree(self, repo: str) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in self.files[repo].items()
        ]

    def _file(self, repo: str, name: str) -> None:
        data = self.files[repo].get(name)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        headers = {
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, data[start:], headers, name=name)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, name: str = ""
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if (limit := self.hub.break_after.pop(name, None)) is not None:
            body = body[:limit]
            self.close_connection = True  # in mid-body, as a network does
        self.hub.sent[name] += len(body)
        self.wfile.write(body)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
