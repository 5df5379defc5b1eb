"""A program that answers as kubectl does, from a file: `get`, `logs` and `proxy --unix-socket`.

Run by `kubectl qwen` in the unit tests, as KUBECTL. The real kubectl does the same in
control_plane and e2e. STATE names a JSON file: {"objects": {"WORDS": …}, "paths": {"PATH": …}}; a
string stands for an error's words, a list of strings for lines that are sent one by one.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from typing import Any


def main() -> int:
    """Answer one call."""
    with open(os.environ["STATE"], encoding="utf-8") as file:
        state: dict[str, Any] = json.load(file)
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if words[0] == "proxy":
        socket = next(w for w in sys.argv if w.startswith("--unix-socket=")).partition("=")[2]
        serve(socket, state["paths"])
    if words[0] == "logs":
        print(" ".join(sys.argv[1:]))
        return 7
    found = state["objects"].get(" ".join(words[1:-2]))
    if found is None:
        print(f'Error from server (NotFound): "{words[2]}" not found', file=sys.stderr)
        return 1
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


def serve(socket: str, paths: dict[str, Any]) -> None:
    """Answer HTTP on a socket until killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = paths.get(self.path)
            status = 503 if found is None or isinstance(found, str) else 200
            self.send_response(status)
            self.end_headers()
            if isinstance(found, list):
                for line in found:
                    self.wfile.write(f"{line}\n".encode())
                return
            body = {"message": found or "no endpoints available"} if status == 503 else found
            self.wfile.write(json.dumps(body).encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.path += "?stream" if asked.get("stream") else ""
            self.do_GET()

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    Server(socket, Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main())
