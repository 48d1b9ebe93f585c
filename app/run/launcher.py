"""Start a program so that it cannot outlive us. Run as a script, without our other modules.

    launcher.py PARENT_PID SIGNAL UID:GID|- COMMAND [ARGUMENT ...]

Changes from root to UID:GID (PostgreSQL refuses to run as root), asks the kernel to send SIGNAL when the parent dies,
and becomes COMMAND. The order matters: a change of user clears the request.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that started it ends (on Linux; elsewhere nothing).

    SIGKILL, because anything else can be lost: a forked process runs with its parent's handlers until it sets its own,
    and one that waits for its last requests would never be stopped. None of our processes needs a clean stop: what was
    acknowledged is committed. Only PostgreSQL gets another one (SIGQUIT), so that it ends its own children. Nothing
    could follow if it failed, so it is the one that always works: see `stopping`.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parent_pid, signal_name, user, *command = sys.argv[1:]
    if user != "-":
        uid, gid = map(int, user.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.umask(0o077)
    signal_number = signal.Signals[signal_name]
    if signal_number != signal.SIGKILL:  # a signal that Python's handler records just before execv would be lost
        signal.signal(signal_number, signal.SIG_DFL)
    die_with_parent(int(parent_pid), signal_number)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
