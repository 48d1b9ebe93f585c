"""A disk of a few megabytes, which a test fills. Mounting one needs rights that not every run has."""

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BLOCK = bytes(64 * 1024)


@dataclass(frozen=True)
class SmallDisk:
    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Until not a byte more fits."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (len(BLOCK), 4096, 1):
                try:
                    while ballast.write(BLOCK[:size]):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    """A file system of its own in memory. Skips the test where it may not be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="plaudit-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "tmpfs", str(folder)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"needs the right to mount a tmpfs ({'root only' if os.geteuid() else mounted.stderr.strip()})")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: what still runs there ends with its own test, and must not keep this one from going on.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607
        folder.rmdir()
