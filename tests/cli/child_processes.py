"""The processes that a command started."""

import subprocess


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The ids of the processes that the command started, the oldest first, as are their ranks."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    return sorted(map(int, listed.stdout.split()))
