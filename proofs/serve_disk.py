"""Let the disk of the live label service fail while clients write (S10).

    python proofs/serve_disk.py                20 rounds per fault → proofs/results/serve_disk.json
    python proofs/serve_disk.py --rounds 1     a short form

The faults, at a random moment while clients write over HTTP:

- sync: fsync and fdatasync fail with EIO.
- space: a write to the run folder ends halfway and then fails with ENOSPC.
- size: files of the front must not become larger (RLIMIT_FSIZE), which the kernel enforces.
- power: the front is killed, and the part of the WAL that was never synced is cut off, as a power
  failure could do. This shows that nothing is acknowledged before it is synced.

The first two are caused by a small library that is loaded before the C library (LD_PRELOAD). After
a fault the service must report it, and must never acknowledge again, although the disk recovers.
Published predictions must be answered all the time, also when the engine is killed meanwhile. After
a restart every acknowledged event must be stored, and writing must work.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from label_log import compare
from live_service import (
    NODES,
    PAUSE,
    RESULTS,
    START,
    Connection,
    Server,
    node_name,
    send_signal,
    serving,
    train,
    wait_for,
    write_result,
)
from serve_kills import Writer

FAULTS = ("sync", "space", "size", "power")
CLIENTS = 4
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether the file FAULT_CONTROL exists and contains this word. */
static int fails(const char *word) {
    const char *path = getenv("FAULT_CONTROL");
    char text[16] = "";
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 && strncmp(text, word, strlen(word)) == 0;
}

/* Whether a file is in the run folder, and its name ends with some characters. */
static int is_ours(int fd, const char *end) {
    char link[64], path[4096];
    const char *folder = getenv("FAULT_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder || length < 0) return 0;
    path[length] = 0;
    size_t tail = strlen(end);
    return strncmp(path, folder, strlen(folder)) == 0 && (size_t)length >= tail &&
           strcmp(path + length - tail, end) == 0;
}

/* Store how many bytes of the WAL are certainly on the disk. */
static void note_synced(long size) {
    const char *path = getenv("FAULT_SYNCED");
    char text[24];
    int file = path ? open(path, O_WRONLY | O_CREAT, 0600) : -1;
    if (file < 0) return;
    snprintf(text, sizeof text, "%020ld", size);
    if (pwrite(file, text, 20, 0) != 20) abort();
    close(file);
}

static int sync_or_fail(long call, int fd) {
    struct stat found;
    if (is_ours(fd, "") && fails("sync")) { errno = EIO; return -1; }
    int is_wal = is_ours(fd, "labels.db-wal") && fstat(fd, &found) == 0;
    int done = syscall(call, fd);
    if (done == 0 && is_wal) note_synced(found.st_size);
    return done;
}
int fsync(int fd) { return sync_or_fail(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_or_fail(SYS_fdatasync, fd); }

int ftruncate64(int fd, off64_t size) {
    if (is_ours(fd, "labels.db-wal")) note_synced(0);
    return syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (is_ours(fd, "") && fails("space")) {
        if (size > 1) return syscall(SYS_pwrite64, fd, data, size / 2, at);
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    if (is_ours(fd, "") && fails("space")) { errno = ENOSPC; return -1; }
    return syscall(SYS_write, fd, data, size);
}
"""


def build_library(folder: Path) -> Path:
    """Compile the library of faults."""
    source, library = folder / "faults.c", folder / "faults.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


@dataclass
class Disk:
    """The disk of a service, which can be broken and repaired."""

    server: Server
    control: Path
    synced: Path
    hard: int = field(default=resource.RLIM_INFINITY)

    def fail(self, fault: str) -> None:
        if fault == "size":
            wal = self.server.folder / "labels.db-wal"
            limits = (wal.stat().st_size + 10_000, self.hard)
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, limits)
        else:
            self.control.write_text(fault)

    def recover(self, fault: str) -> None:
        self.control.unlink(missing_ok=True)
        if fault == "size":
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (self.hard, self.hard))

    def lose_what_is_not_synced(self) -> int:
        """Cut the WAL off where its last sync ended; return how many bytes were lost."""
        wal = self.server.folder / "labels.db-wal"
        kept, size = int(self.synced.read_text()), wal.stat().st_size
        with wal.open("rb+") as file:
            file.truncate(min(kept, size))
        return max(0, size - kept)


class Reads(threading.Thread):
    """A client that reads published predictions, and counts the answers."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connection, self._stop_reading = Connection(port), stop
        self.statuses: Counter[str] = Counter()

    def run(self) -> None:
        while not self._stop_reading.wait(PAUSE):
            answer = self._connection.send("GET", f"/v1/nodes/{node_name(0)}")
            self.statuses[str(answer.status)] += 1
        self._connection.close()


def run_round(
    trained: Path, library: Path, fault: str, place: Path, seed: str, nodes: int = NODES
) -> tuple[Counter[str], list[str]]:
    """One fault on a copy of a run; return counts and problems."""
    draw = random.Random(seed)
    folder = place / "run"
    shutil.copytree(trained, folder)
    control, synced = place / "control", place / "synced"
    env = {
        "LD_PRELOAD": str(library),
        "FAULT_FOLDER": f"{folder.resolve()}/",
        "FAULT_CONTROL": str(control),
        "FAULT_SYNCED": str(synced),
    }
    problems: list[str] = []
    counts: Counter[str] = Counter()
    with serving(folder, **env) as server:
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        disk, connection = Disk(server, control, synced, hard), Connection(server.port)
        stop, stop_reading = threading.Event(), threading.Event()
        writers = [
            Writer(f"c{n}", server, draw.randrange(2**30), stop, nodes) for n in range(CLIENTS)
        ]
        reads = Reads(server.port, stop_reading)
        for client in (*writers, reads):
            client.start()
        wait_for(
            lambda: sum(len(one.acknowledged) for one in writers) >= 10, START, "nothing is written"
        )
        time.sleep(draw.uniform(0, 1))
        if fault != "power":
            disk.fail(fault)
            wait_for(
                lambda: not server.states(connection).get("writes", True),
                START,
                "no fault was found",
            )
            reported = time.monotonic()
            engine = server.engine
            if draw.random() < 0.5:
                send_signal(engine, signal.SIGKILL)
                counts["engines_killed"] += 1
                wait_for(
                    lambda: server.engine not in (None, engine)
                    and server.states(connection).get("engine") in ("ready", "behind"),
                    START,
                    "the engine was not started again",
                )
            disk.recover(fault)
            time.sleep(0.5)
            refused = connection.send("PUT", f"/v1/nodes/{node_name(1)}/label", {"label": "red"})
            if (refused.status, refused.problem) != (503, "broken") or not refused.retry_after:
                problems.append(f"{fault}: a write was answered with {refused}")
            late = [sent for one in writers for sent, _ in one.answers if sent > reported]
            counts["late"] += len(late)
            if set(reads.statuses) != {"200"}:
                problems.append(f"{fault}: reads were answered with {dict(reads.statuses)}")
        stop_reading.set()
        reads.join()
        counts["reads"] += reads.statuses["200"]
        server.end(
            draw.choice([signal.SIGKILL, signal.SIGTERM]) if fault != "power" else signal.SIGKILL
        )
        stop.set()
        for one in writers:
            one.join()
        if fault == "power":
            counts["bytes_lost"] += disk.lose_what_is_not_synced()
        server.start()
        connection.close()
        path = f"/v1/nodes/{node_name(1)}/label"
        wait_for(
            lambda: connection.send("PUT", path, {"label": "red"}).status == 200,
            START,
            "a write was not acknowledged after a restart",
        )
        connection.close()
        found = compare(folder, writers)
        tracebacks = server.tracebacks()
    for name in ("lost", "doubled", "gaps"):
        counts[name] += found[name]
    problems += [f"{fault}: {one}" for one in found["problems"]]
    if tracebacks:
        problems.append(f"{fault}: {tracebacks} tracebacks")
    counts["acknowledged"] += sum(len(one.acknowledged) for one in writers)
    shutil.rmtree(folder)
    return counts, problems


def prove(rounds: int, seed: int, place: Path, faults: tuple[str, ...] = FAULTS) -> dict[str, Any]:
    """Let each fault happen in some rounds, each on a new service."""
    trained, library = train(place), build_library(place)
    totals: Counter[str] = Counter()
    problems: list[str] = []
    for number in range(rounds):
        for fault in faults:
            inside = place / f"{fault}-{number}"
            inside.mkdir()
            counts, found = run_round(trained, library, fault, inside, f"{seed} {number} {fault}")
            totals += counts
            problems += found
            print(f"{number + 1} of {rounds}, {fault}: {dict(counts)} {found}", flush=True)
    names = ("acknowledged", "reads", "engines_killed", "lost", "doubled", "gaps")
    return {
        "faults": dict.fromkeys(faults, rounds),
        **{name: totals[name] for name in names},
        "acknowledged_after_the_fault": totals["late"],
        "unsynced_bytes_cut_off": totals["bytes_lost"],
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="Services per kind of fault.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of moments and requests.")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve_disk.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = prove(options.rounds, options.seed, Path(place))
    what = (
        "the disk of a service fails while clients write over HTTP: syncs, space, the size of "
        "files, and a power failure that loses what was not synced"
    )
    write_result(options.out, "serve_disk.py", what, found)
    names = ("lost", "doubled", "gaps", "acknowledged_after_the_fault")
    return 1 if sum(found[name] for name in names) + len(found["problems"]) else 0


if __name__ == "__main__":
    sys.exit(main())
