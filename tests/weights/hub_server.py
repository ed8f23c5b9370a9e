"""A hub on loopback: the endpoints that huggingface_hub calls, redirects, ranges, and chosen faults."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" * 6 + "beef"


@dataclass
class Hub:
    """A hub with one repository, the files of a folder; `requests` lists what was requested."""

    repository: str
    files: dict[str, bytes]
    status: int = 200  # of every answer, unless it is 200
    error_code: str = ""  # X-Error-Code
    cut_after: int | None = None  # bytes of large files, on their first request
    always_cut: bool = False
    silent: bool = False  # accepts connections and never answers
    token: str | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    url: str = ""

    def asked_files(self) -> set[str]:
        return {
            path.rpartition("/")[2] for method, path in self.requests if "/cdn/" in path or method == "GET"
        }


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` while the block runs."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.requests.append((self.command, self.path))
            if hub.silent:
                done.wait(60)
                self.close_connection = True
                return
            given = self.headers.get("Authorization")
            if hub.token is not None and "/cdn/" not in self.path and given != f"Bearer {hub.token}":
                self.say(401, b"{}", {"X-Error-Code": hub.error_code or "RepoNotFound"})
            elif hub.status != 200:
                self.say(hub.status, b"{}", {"X-Error-Code": hub.error_code} if hub.error_code else {})
            elif re.fullmatch(f"/api/models/{hub.repository}(/revision/(main|v1))?", self.path):
                siblings = [{"rfilename": name} for name in hub.files]
                self.say_json({"id": hub.repository, "sha": COMMIT, "siblings": siblings})
            elif self.path.startswith(f"/api/models/{hub.repository}/revision/"):
                self.say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif self.path.startswith(f"/api/models/{hub.repository}/tree/"):
                self.say_json(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                        for name, data in hub.files.items()
                    ]
                )
            elif self.path.startswith(prefix := f"/{hub.repository}/resolve/{COMMIT}/"):
                self.resolve(self.path.removeprefix(prefix))
            elif self.path.startswith("/cdn/"):
                self.send_file(self.path.removeprefix("/cdn/"))
            else:
                self.say(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def resolve(self, name: str) -> None:
            """Send small files at once, and weights by a redirect to their storage, as the hub does."""
            data = hub.files[name]
            facts = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(data)}"'}
            if name.endswith(".safetensors"):
                location = f"{hub.url}/cdn/{name}".replace("127.0.0.1", "localhost")  # another host
                facts |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{etag(data)}"'}
                self.say(302, b"", facts | {"Location": location})
            else:
                self.say(200, data, facts)

        def send_file(self, name: str) -> None:
            data, status, facts = hub.files[name], 200, {"ETag": f'"{etag(hub.files[name])}"'}
            asked = self.headers.get("Range")
            if asked:
                hub.ranges.append(asked)
                start = int(re.match(r"bytes=(\d+)-", asked)[1])
                facts["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                data, status = data[start:], 206
            if hub.cut_after is not None and self.command == "GET":
                cut, self.close_connection = data[: hub.cut_after], True
                hub.cut_after = hub.cut_after if hub.always_cut else None
                self.say(status, cut, facts, length=len(data))
            else:
                self.say(status, data, facts)

        def say_json(self, value: object) -> None:
            self.say(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def say(self, status: int, data: bytes, headers: dict[str, str], length: int | None = None) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data) if length is None else length))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        done.set()
        server.shutdown()
        server.server_close()


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
