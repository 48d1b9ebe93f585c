"""A site of somebody's, on an origin of its own."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit


class Site(ThreadingHTTPServer):
    """Every path is the same page, but for pages and scripts of their own."""

    html = ""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.scripts: dict[str, bytes] = {}
        self.posted: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.origin = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, Site)
            path, script = urlsplit(self.path).path, self.server.scripts.get(self.path)
            body = script or self.server.pages.get(path, self.server.html).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if script else "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            assert isinstance(self.server, Site)
            self.server.posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            return
