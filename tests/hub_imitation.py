"""A small imitation of the model hub on loopback: models, revisions, tokens, gated models."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """models: name → revision → folder. private: names that need `token`. gated: likewise, but
    visible. requests: every method and path that was asked for."""

    models: dict[str, dict[str, Path]]
    token: str = "hf_right"
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def commit(self, name: str, revision: str) -> str | None:
        """The commit of a branch or of itself."""
        commits = {r: hashlib.sha1(f"{name}{r}".encode()).hexdigest() for r in self.models[name]}
        return commits.get(revision) or (revision if revision in commits.values() else None)

    def folder(self, name: str, commit: str) -> Path:
        return next(f for r, f in self.models[name].items() if self.commit(name, r) == commit)

    def files(self, name: str, commit: str) -> list[str]:
        folder = self.folder(name, commit)
        paths = (path for path in folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(folder)) for path in paths)


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Runs the hub on a free port of 127.0.0.1; `hub.endpoint` is its address."""

    class Handler(_Handler):
        server_hub = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on stderr."""

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server_hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            name, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            kind, file = ("tree" if parts[4:5] == ["tree"] else "info"), ""
        elif len(parts) >= 5 and parts[2] == "resolve":
            name, revision, kind, file = "/".join(parts[:2]), parts[3], "file", "/".join(parts[4:])
        else:
            return self._fail(404, "EntryNotFound")
        commit = self._allowed_commit(name, revision)
        if commit is None:
            return None
        if kind == "file":
            return self._send_file(name, commit, file, body)
        files = self.server_hub.files(name, commit)
        if kind == "tree":
            folder = self.server_hub.folder(name, commit)
            rows = [
                {"type": "file", "path": f, "size": (folder / f).stat().st_size, "oid": "0"}
                for f in files
            ]
            return self._send_json(rows, commit)
        siblings = [{"rfilename": f} for f in files]
        return self._send_json({"id": name, "sha": commit, "siblings": siblings}, commit)

    def _allowed_commit(self, name: str, revision: str) -> str | None:
        hub = self.server_hub
        known = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if name not in hub.models or (name in hub.private and not known):
            return self._fail(401, "RepoNotFound")
        if name in hub.gated and not known:
            return self._fail(403, "GatedRepo")
        return hub.commit(name, revision) or self._fail(404, "RevisionNotFound")

    def _send_file(self, name: str, commit: str, file: str, body: bool) -> None:
        path = self.server_hub.folder(name, commit) / file
        if not path.is_file():
            return self._fail(404, "EntryNotFound")
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)
        return None

    def _send_json(self, data: object, commit: str) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
