"""A wall clock that jumps, for the processes of one node: a library that is loaded before libc's.

The machine's own clock belongs to everybody on it, and a time namespace changes only clocks that count from the boot.
So this needs a C compiler and no rights. The offset is in a file, so that it changes while the processes run.
"""

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;
static int (*libc_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("PLAUDIT_TEST_CLOCK");
    libc_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (path == NULL) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offset_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (libc_clock_gettime == NULL) load();
    int failed = libc_clock_gettime(clock, time);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *offset_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str:
    """Why there can be no such clock here; empty if there can."""
    return "" if shutil.which("cc") else "no C compiler"


class Clock:
    """The clock of one node: `env` is what its processes need, `jump` moves it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.env: dict[str, str] = {}
        self.jump(0)
        if why_not():
            return
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE)
        compile_ = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(compile_, check=True, capture_output=True)
        self.env = {"LD_PRELOAD": str(library), "PLAUDIT_TEST_CLOCK": str(self._file)}

    def jump(self, offset_s: int) -> None:
        """From now on this many seconds from the machine's time. In place: processes have the file mapped."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("q", offset_s))
