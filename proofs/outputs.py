"""Show that no command and no function overwrites a file that it should not.

    python proofs/outputs.py --cases 1500           → proofs/results/outputs.json

A case is a project folder with tables, label files, two runs and files of the user, and a command
that is asked to write to one of many targets: files of a run, its own inputs, files of another
kind, existing files, links, second names, pipes and folders, with and without --force. A refused
command exits with code 1 and a message, and every byte in the project is as before. A command that
may write exits with code 0 and changes nothing but its target.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bad_tables import run_command
from tampered_runs import SETTINGS, write_tables

import unimp
from unimp.config.run_files import WRITTEN
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "outputs.json"
COMMANDS: dict[str, tuple[list[str], str, str]] = {
    "init": (["init", "nodes.csv", "edges.csv"], "--out", ".toml"),
    "predict": (
        ["predict", "run", "--labels", "labels.csv", "--nodes", "new.csv"],
        "--out",
        ".csv",
    ),
    "predict to Parquet": (["predict", "run", "--labels", "labels.csv"], "--out", ".parquet"),
    "audit": (["audit", "run", "--labels", "labels.csv"], "--out", ".csv"),
    "suggest": (["suggest", "run", "--labels", "labels.csv", "--no-smooth"], "--out", ".parquet"),
    "explain": (["explain", "run", "n1", "--no-keep"], "--out", ".txt"),
    "explain --json": (["explain", "run", "n1", "--no-keep", "--json"], "--out", ".json"),
    "explain --report": (["explain", "run", "n1", "--no-keep"], "--report", ".html"),
    "report": (["report", "run", "--no-label-rates"], "--out", ".html"),
    "report of two": (["report", "run", "other", "--no-label-rates"], "--out", ".html"),
}
KINDS = (".csv", ".parquet", ".toml", ".json", ".html", ".npz", ".txt", ".safetensors", ".png", "")
ALLOWED = {
    ".csv": (".csv", ".parquet", ".pq"),
    ".parquet": (".csv", ".parquet", ".pq"),
    ".txt": (".txt", ".md"),
    ".html": (".html", ".htm"),
}
OWN = ("recipe.toml", "nodes.csv", "edges.csv", "labels.csv", "new.csv")
LOCKS: dict[str, Callable[[Path], object]] = {
    "no lock": lambda path: None,
    "an empty lock": lambda path: path.touch(),
    "a lock of a killed process": lambda path: path.write_text("123456"),
    "a lock of another program": lambda path: path.write_text("host 1 of mine"),
    "a lock that is a link": lambda path: path.symlink_to(path.parent.parent / "mine.txt"),
    "a lock with a second name": lambda path: os.link(path.parent.parent / "mine.txt", path),
    "a lock that is a pipe": os.mkfifo,
    "a lock that is a folder": lambda path: path.mkdir(),
}


@dataclass(frozen=True)
class Case:
    """A command, and what is prepared in the project before it runs."""

    command: str
    target: str  # in words
    arguments: list[str]
    written: str | None = None  # the path that may change; None: the command is refused
    prepare: Callable[[Path], object] = lambda folder: None


def make_project(folder: Path) -> None:
    """Tables, label files, two runs and files of the user."""
    write_tables(folder)
    (folder / "labels.csv").write_text("node,label\nn4,red\n")
    (folder / "new.csv").write_text("id,age,kind,words,label\nnew,3,a,some words,\n")
    for seed, name in enumerate(("run", "other")):
        run = unimp.run(
            str(folder / "recipe.toml"),
            seed=seed,
            out=folder / name,
            settings={**SETTINGS, "train.epochs": 1},
            progress=False,
        )
        assert run.folder is not None
    code, _, err = run_command(["explain", "run", "n1"], folder)
    assert code == 0, err
    (folder / "mine.txt").write_text("of the user")
    for kind in KINDS:
        (folder / f"mine{kind}").write_text(f"of the user {kind}")


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder, and the targets of links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"  # noqa: PTH115
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "a folder or a pipe"
    return found


def file_cases(project: Path) -> Iterator[Case]:
    """Every command that writes one file, and every kind of target."""
    stored = [str(path.relative_to(project)) for path in (project / "run").rglob("*.*")]
    stored += [f"other/{name}" for name in WRITTEN if (project / "other" / name).exists()]
    for name, (words, option, kind) in COMMANDS.items():
        for force in ([], ["--force"]):

            def case(
                target: str,
                path: str,
                *,
                written: bool = False,
                prepare: Callable[[Path], object] = lambda folder: None,
                name: str = name,
                words: list[str] = words,
                option: str = option,
                force: list[str] = force,
            ) -> Case:
                arguments = [*words, option, path, *force]
                what = f"{target}{', --force' if force else ''}"
                return Case(name, what, arguments, path if written else None, prepare)

            inputs = [*OWN, *stored]
            for own in inputs:
                if own == "run/report.html" and name == "report":
                    continue  # the page of the run itself is written again
                reads = own in words or own in ("nodes.csv", "edges.csv")
                if own in OWN and not reads and not (name != "init" and own == "recipe.toml"):
                    continue
                yield case("an input or a file of a run", own)
                yield case("an input by another path", f"run/../{own}")
                yield case(
                    "a link to an input",
                    f"link{kind}",
                    prepare=lambda folder, own=own, kind=kind: (folder / f"link{kind}").symlink_to(
                        own
                    ),
                )
                if own.startswith("other/") or own == "recipe.toml":
                    continue
                if name == "init" and own.startswith("run/"):
                    continue
                yield case(
                    "a second name of an input",
                    f"second{kind}",
                    prepare=lambda folder, own=own, kind=kind: os.link(
                        folder / own, folder / f"second{kind}"
                    ),
                )
            yield case(
                "a file of a run, by a linked folder",
                "linked/predictions.parquet",
                prepare=lambda folder: (folder / "linked").symlink_to("run"),
            )
            for other in KINDS:
                fits = other in ALLOWED.get(kind, (kind,))
                yield case(
                    f"an existing file mine{other}", f"mine{other}", written=fits and bool(force)
                )
                yield case(f"a new file x{other}", f"x{other}", written=fits)
                yield case(f"a new file deep/x{other}", f"deep/x{other}", written=fits)
            made: dict[str, Callable[[Path], object]] = {
                "a folder": lambda path: path.mkdir(),
                "a pipe": os.mkfifo,
                "a link to nothing": lambda path: path.symlink_to("nowhere"),
                "a link to a file of the user": lambda path: path.symlink_to("mine.txt"),
                "a link to a device": lambda path: path.symlink_to("/dev/full"),
            }
            for target, make in made.items():
                yield case(
                    target,
                    f"special{kind}",
                    prepare=lambda folder, make=make, kind=kind: make(folder / f"special{kind}"),
                )


def folder_cases() -> Iterator[Case]:
    """`train` into folders with files of the user, links and locks; and `data export`."""
    fails = ["--set", "model.heads=7", "--set", "model.width=4", "--set", "task.metric=rocauc"]
    for recipe in ("recipe.toml", "wrong.toml"):
        words = ["train", recipe, "--set", "model.name=label-propagation", "--out", "made"]
        words += fails if recipe == "wrong.toml" else []
        for lock, put in LOCKS.items():
            for name in WRITTEN:
                if lock != "no lock" and name in ("task.npz", "transforms.json"):
                    continue  # a process that was killed leaves these beside its lock
                if name == "trackers.json":
                    continue  # it does not depend on the run
                made: dict[str, Callable[[Path], object]] = {
                    "a file of the user": lambda path: path.write_text("mine"),
                    "a link": lambda path: path.symlink_to("../mine.txt"),
                    "a link to nothing": lambda path: path.symlink_to("../nowhere"),
                    "a pipe": os.mkfifo,
                    "a folder": lambda path: path.mkdir(),
                }
                for what, make in made.items():

                    def prepare(
                        folder: Path,
                        name: str = name,
                        make: Callable[[Path], object] = make,
                        put: Callable[[Path], object] = put,
                    ) -> None:
                        (folder / "made").mkdir()
                        shutil.copyfile(folder / "recipe.toml", folder / "wrong.toml")
                        put(folder / "made" / ".lock")
                        make(folder / "made" / name)

                    yield Case("train", f"{name} is {what}, {lock}", words, None, prepare)
    for form in ("csv", "parquet"):
        for force in ([], ["--force"]):
            words = ["data", "export", "run/task.npz", "--out", "made", "--format", form, *force]
            yield Case("data export", f"a new folder, {form}", words, "made")
            for file in (f"nodes.{form}", f"edges.{form}"):

                def link(folder: Path, file: str = file) -> None:
                    (folder / "made").mkdir()
                    (folder / "made" / file).symlink_to("../mine.txt")

                def exists(folder: Path, file: str = file) -> None:
                    (folder / "made").mkdir()
                    (folder / "made" / file).write_text("mine")

                yield Case("data export", f"a link {file}", words, None, link)
                written = "made" if force else None
                yield Case("data export", f"an existing {file}", words, written, exists)


def all_cases(project: Path) -> list[Case]:
    return [*file_cases(project), *folder_cases()]


def chosen_cases(cases: list[Case], count: int) -> list[Case]:
    """`count` random cases, the same in every run."""
    return random.Random(0).sample(cases, min(count, len(cases)))


def outcome(case: Case, project: Path, place: Path) -> str:
    """`refused` or `written`; AssertionError if anything else changed."""
    folder = place / "project"
    shutil.copytree(project, folder)
    case.prepare(folder)
    before = contents(folder)
    code, out, err = run_command(case.arguments, folder)
    after = contents(folder)
    context = f"{case.command}: {case.target}: {' '.join(case.arguments)}: {err!r}"
    assert "Traceback" not in err, context
    assert "with --debug to see where" not in err, f"an unexpected error: {context}"
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if case.written is None:
        assert code == 1, f"exit code {code}, {context} {out}"
        assert any(line.startswith("error: ") for line in err.splitlines()), context
        assert len(err) > 30, context
        assert not differ, f"changed {differ}: {context}"
        return "refused"
    assert code == 0, f"exit code {code}, {context}"
    target = Path(case.written)
    expected = {str(target), *map(str, target.parents)}
    changed = {name for name in differ if name not in expected and target not in Path(name).parents}
    assert not changed, f"changed {changed}: {context}"
    assert differ, f"nothing was written: {context}"
    return "written"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1500)
    wanted = parser.parse_args().cases
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        project = Path(made)
        make_project(project)
        cases = all_cases(project)
        for case in chosen_cases(cases, wanted):
            with tempfile.TemporaryDirectory() as place:
                found = outcome(case, project, Path(place))
            counts.setdefault(case.command, Counter())[found] += 1
    total = sum(counts.values(), Counter[str]())
    result = {
        "command": f"python proofs/outputs.py --cases {wanted}",
        "code": code_origin(),
        "possible_cases": len(cases),
        "cases": total.total(),
        "outcomes": dict(sorted(total.items())),
        "by_command": {name: dict(sorted(found.items())) for name, found in sorted(counts.items())},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{total.total()} cases, {dict(total)}: {RESULTS}")


if __name__ == "__main__":
    main()
