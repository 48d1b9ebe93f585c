"""Debian's nginx for tests: the file of docs/operating.md, in front of one node or several."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.secrets_seen import LOG_FOLDER
from tests.servers.programs import Server, find
from tests.service import ROOT

WEB_FAILURES, LIVE_FAILURES = "max_fails=1 fail_timeout=5s;", "max_fails=0;"


class Proxy(Server):
    """The documented file, with the ports and folders of this test. Its logs are searched for secrets too."""

    name = "nginx"
    as_root = True  # to write its logs
    # The ports of each node: its API's, its sockets'.
    nodes: Sequence[tuple[int, int]] = ()
    # How long a node may take to answer.
    read_timeout_s = 30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = find("nginx")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        config = self.folder / "nginx.conf"
        places = "".join(
            f"{name}_temp_path {self.folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        root = "user root;" if os.geteuid() == 0 else ""
        pid = f"{self.folder}/nginx.pid"
        events = "worker_connections 4096;"
        config.write_text(
            f"daemon off; {root} pid {pid}; events {{ {events} }} http {{ {places}\n{self._documented()} }}"
        )
        return [self.program, "-c", str(config), "-e", f"{LOG_FOLDER}/nginx-start.log"]

    def _documented(self) -> str:
        sample: str
        (sample,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
        sample, others = re.subn(r"\n +server 10\.0\.0\.12:.*", "", sample)
        assert others == 2
        for said, meant in {
            f"server 10.0.0.11:8000 {WEB_FAILURES}": " ".join(
                f"server 127.0.0.1:{web} {WEB_FAILURES}" for web, _ in self.nodes
            ),
            f"server 10.0.0.11:8001 {LIVE_FAILURES}": " ".join(
                f"server 127.0.0.1:{live} {LIVE_FAILURES}" for _, live in self.nodes
            ),
            "proxy_read_timeout 30s;": f"proxy_read_timeout {self.read_timeout_s}s;",
            "listen 80;": f"listen 127.0.0.1:{self.port};",
            "plaudit.example": "127.0.0.1",
            "/var/log/nginx/": f"{LOG_FOLDER}/nginx-",
        }.items():
            assert said in sample
            sample = sample.replace(said, meant)
        return sample
