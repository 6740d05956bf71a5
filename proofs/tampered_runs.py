"""Show that a run folder which was changed is refused, or answers exactly as before.

    python proofs/tampered_runs.py --cases 4000     → proofs/results/tampered_runs.json

A case is a copy of a small run with one change: a field of a JSON file with another type or value,
a truncated file, other bytes, the file of another run, a link, a pipe, a folder or a huge file in
place of a file. The copy is loaded and predicts, for its own nodes and for a new one; its report
and its explanations are read; an unfinished run is prepared for resuming. Each case must end with
an error of this package that names the file, or with exactly the answer of the original. The page
is also written from the folder alone: it must be refused, or name the file, or equal that of the
original, if the run itself is not refused.

In some cases the manifest is signed again after the change, as only a person who wants to deceive
would do. Then the values themselves are checked: the case must end with an error of this package,
or with probabilities that are finite and sum to 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import shutil
import signal
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import unimp
from unimp.config.recipe import Recipe
from unimp.data.files import digest_of, write_atomically
from unimp.errors import UnimpError
from unimp.report.evidence import Evidence
from unimp.report.page import page_html
from unimp.runs.evidence import gather
from unimp.runs.folder.explanations import store_explanation, stored_explanations
from unimp.runs.folder.files import file_entry
from unimp.runs.folder.resume import depends_on, find_run, load_state
from unimp.runs.preparation import task_of
from unimp.runs.recipes import resolve_recipe
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "tampered_runs.json"
SETTINGS = {"model.width": 4, "model.layers": 1, "train.device": "cpu", "tables.text_width": 8}
PARTS = (
    *("recipe.toml", "model.safetensors", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("task.npz", "transforms.json", "manifest.json", "evidence.parquet"),
)
SIGNED = ("manifest.json", "metrics.json", "transforms.json")
NEW = {"id": ["new"], "age": [3.5], "kind": ["a"], "words": ["some words"], "label": [None]}
NEW_EDGES = {"source": ["new", "n1"], "target": ["n2", "new"], "weight": [1.0, 2.0]}
LONGEST = 20  # seconds after which a case counts as waiting forever


@dataclass(frozen=True)
class Case:
    """One change of a run folder."""

    kind: str
    file: str
    what: str
    change: Callable[[Path], None]
    signed: bool = False


@dataclass(frozen=True)
class Original:
    """The runs that are changed, and the answers that they give."""

    finished: Path
    other: Path  # another run of the same recipe
    unfinished: Path
    page: str
    answer: list[Any]
    state: list[Any]


def write_tables(folder: Path) -> None:
    draw = random.Random(0)
    rows = ["id,age,kind,words,label"]
    rows += [
        f"n{i},{i % 7},{'abc'[i % 3]},some words of row {i % 5},"
        + (["red", "blue"][i % 2] if i % 4 else "")
        for i in range(40)
    ]
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    ends = [f"n{draw.randrange(40)},n{draw.randrange(40)},{i % 9}" for i in range(120)]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *ends]) + "\n")
    (folder / "recipe.toml").write_text(
        '[tables]\nnodes = "nodes.csv"\nedges = "edges.csv"\nlabel = "label"\n'
        '[tables.features]\nage = "numeric"\nkind = "categorical"\nwords = "text"\n'
        '[tables.edge_features]\nweight = "numeric"\n'
    )


def originals(folder: Path) -> Original:
    """Train the runs: two that are finished, and one that is not."""
    write_tables(folder)
    recipe = str(folder / "recipe.toml")
    for seed, name in enumerate(("finished", "other")):
        run = unimp.run(
            recipe,
            seed=seed,
            out=folder / name,
            settings={**SETTINGS, "train.epochs": 3, "train.lr": 0.05},
            progress=False,
        )
        store_explanation(folder / name, run.explain("n1").to_dict(), {})

    def stop(epoch: Any) -> None:
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        unimp.run(
            recipe, out=folder / "unfinished", settings=unfinished(), on_epoch=stop, progress=False
        )
    copied = copy_of(folder / "finished", folder / "copied" / "run")
    original = Original(
        *(folder / name for name in ("finished", "other", "unfinished")),
        page=page_of(gather(copied), copied),
        answer=[],
        state=[],
    )
    original.answer.extend(answer(original.finished))
    original.state.extend(state(original.unfinished))
    return original


def copy_of(run: Path, folder: Path) -> Path:
    """Copy a run, and the tables beside it."""
    shutil.copytree(run, folder)
    for name in ("recipe.toml", "nodes.csv", "edges.csv"):
        shutil.copyfile(run.parent / name, folder.parent / name)
    return folder


def unfinished() -> dict[str, Any]:
    return {**SETTINGS, "train.epochs": 5, "train.checkpoint_every": 1e-9}


def answer(folder: Path, *, report: bool = True) -> list[Any]:
    """Everything that a finished run answers, as plain values."""
    run = unimp.load_run(folder, device="cpu")
    larger = run.extended(NEW, NEW_EDGES)
    found: list[Any] = [
        run.seed,
        run.predict().tolist(),
        run.predictions().to_pylist(),
        run.evaluate(),
        larger.predict().tolist(),
    ]
    return found + (read_report(folder, run) if report else [])


def read_report(folder: Path, run: Any) -> list[Any]:
    evidence = gather(folder, run, label_rates=False)
    text = page_html([evidence])
    return [
        dict(evidence.metrics),
        [dict(line) for line in evidence.history],
        [dict(one.found) for one in stored_explanations(folder).stored],
        evidence.explanations.damaged,
        "<script" in text,
    ]


def page_of(evidence: Evidence, folder: Path) -> str:
    """The page of a run, without the place of its folder."""
    return page_html([evidence]).replace(str(folder.parent), "")


def is_accepted(case: Case, original: Original, folder: Path) -> bool:
    """Whether the page is written from the folder alone, without a loaded run, with all parts."""
    context = f"{case.kind}, {case.file}, {case.what}"
    page = ""
    try:
        evidence = gather(folder)
        page, problem = page_of(evidence, folder), evidence.missing
    except UnimpError as error:
        problem = str(error)
    assert "<script" not in page, f"a script in the page ({context})"
    if problem:
        assert case.kind != "no effect", f"refused without reason: {problem} ({context})"
        named = str(folder) in problem or case.signed
        assert named, f"the file is not named: {problem} ({context})"
    elif not case.signed and not case.file.startswith("explanations/"):
        assert page == original.page, f"another page ({context})"
    return not problem


def state(folder: Path) -> list[Any]:
    """The state from which an unfinished run would resume, as plain values."""
    recipe = resolve_recipe(str(folder.parent / "recipe.toml"), unfinished())
    recipe = recipe.with_task(folder / "task.npz")
    found = find_run(folder, recipe, 0)
    data = data_hash(found.recipe)
    origin = depends_on(found.recipe, 0, data=data, device="cpu", model=None)
    kept = load_state(folder, origin)
    if kept is None:
        return []  # the run starts again
    tensors = {name: value.tolist() for name, value in sorted(kept.tensors.items())}
    return [tensors, vars(kept.position), [vars(epoch) for epoch in kept.history], kept.best]


def data_hash(recipe: Recipe) -> str:
    """The hash of the data, which is the same in every case."""
    if not HASHES:
        HASHES.append(task_of(recipe, 0).data_hash())
    return HASHES[0]


HASHES: list[str] = []


# Changes

DEEP = "[" * 50_000 + "]" * 50_000
TEXTS = ["null", "true", "false", "0", "1", "-1", "0.5", "1e999", "-1e308", "NaN", "-Infinity"]
TEXTS += ['""', '"text"', '"<script>alert(1)</script>"', "[]", "{}", "[[[1]]]", '{"a": 1}']
TEXTS += ["9" * 40, "1e-320", '"\\ud800"', '"\\u0000"', DEEP]
MARK = "the place of the new value"


def places(values: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields in nested values."""
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in inside:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def changed(values: Any, place: tuple[Any, ...], text: str | None) -> str:
    """JSON with another text in one place; None: without that field."""
    values = copy.deepcopy(values)
    inside = values
    for key in place[:-1]:
        inside = inside[key]
    if text is None:
        del inside[place[-1]]
        return json.dumps(values)
    inside[place[-1]] = MARK
    return json.dumps(values).replace(json.dumps(MARK), text)


def sign(folder: Path) -> None:
    """Write the hashes of the files as they are now into the manifest."""
    path = folder / "manifest.json"
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, OSError):
        manifest = json.loads(path.read_text())
        for name in manifest["files"]:
            with contextlib.suppress(OSError):
                manifest["files"][name] = file_entry(folder / name)
        manifest["digest"] = digest_of(manifest)
        path.write_text(json.dumps(manifest))


def field_cases(original: Original) -> Iterator[Case]:
    """Every field of every JSON file with other values, with and without signing."""
    explanation = next((original.finished / "explanations").iterdir()).name
    files = ["manifest.json", "metrics.json", "transforms.json", f"explanations/{explanation}"]
    for file in files:
        values = json.loads((original.finished / file).read_text())
        for place in places(values):
            for text in (None, *TEXTS):
                new = changed(values, place, text)
                if text is not None and same_json(new, values):
                    continue
                what = f"{'.'.join(map(str, place))} = {text if text is None else text[:30]}"
                yield text_case("a field", file, what, new)
                if file in SIGNED and place[0] not in ("files", "digest"):
                    yield text_case("a field, signed again", file, what, new, signed=True)
    lines = (original.finished / "history.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        for place in places(json.loads(line)):
            for text in (None, *TEXTS):
                new = [*lines]
                new[number] = changed(json.loads(line), place, text)
                what = f"line {number}, {place[0]} = {text if text is None else text[:30]}"
                for signed in (False, True):
                    kind = "a field" + signed * ", signed again"
                    yield text_case(kind, "history.jsonl", what, "\n".join(new), signed=signed)
    stored = (original.finished / "recipe.toml").read_text().splitlines()
    for number, line in enumerate(stored):
        for text in ("", f"{line.partition('=')[0]}= 7", f"{line.partition('=')[0]}= 'x'"):
            new = [*stored]
            new[number] = text
            what = f"line {number}: {text}"
            if text != line:
                yield text_case("an option", "recipe.toml", what, "\n".join(new) + "\n")


def same_json(text: str, values: Any) -> bool:
    try:
        return bool(json.dumps(json.loads(text)) == json.dumps(values))
    except (ValueError, RecursionError):
        return False


def text_case(kind: str, file: str, what: str, text: str, *, signed: bool = False) -> Case:
    def change(folder: Path) -> None:
        (folder / file).write_text(text, encoding="utf-8")
        if signed:
            sign(folder)

    return Case(kind, file, what, change, signed)


def checkpoint_cases(original: Original) -> Iterator[Case]:
    """Every field of the description of a checkpoint, and other bytes in it."""
    file = "checkpoint.safetensors"
    data = (original.unfinished / file).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["unimp"])
    for place in places(about):
        for text in (None, *TEXTS):
            new = changed(about, place, text)
            if text is not None and same_json(new, about):
                continue
            head = {**header, "__metadata__": {"unimp": new}}
            packed = json.dumps(head).encode()
            what = f"{'.'.join(map(str, place))} = {text if text is None else text[:30]}"
            yield bytes_case(
                "a field",
                file,
                what,
                struct.pack("<Q", len(packed)) + packed + data[8 + length :],
            )
    yield from byte_cases(file, data)
    yield from special_cases(file)


def bytes_case(kind: str, file: str, what: str, data: bytes) -> Case:
    return Case(kind, file, what, lambda folder: (folder / file).write_bytes(data) and None)


def byte_cases(file: str, data: bytes) -> Iterator[Case]:
    """A file that is cut short, or in which some bytes differ."""
    for number in range(40):
        kept = len(data) * number // 40
        yield bytes_case("cut short", file, f"{kept} bytes", data[:kept])
    for number in range(200):
        first = len(data) * number // 200
        for mask in (1, 128, 255):
            other = bytearray(data)
            other[first] ^= mask
            yield bytes_case("other bytes", file, f"byte {first} ^ {mask}", bytes(other))
        zeros = data[:first] + bytes(min(64, len(data) - first)) + data[first + 64 :]
        if zeros != data:
            yield bytes_case("other bytes", file, f"zeros from byte {first}", zeros)
    yield bytes_case("other bytes", file, "more bytes", data + b"\n ")


def special_cases(file: str) -> Iterator[Case]:
    """Something else in place of a file."""

    def put(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            path = folder / file
            path.rename(folder.parent / "moved")
            make(path)

        return change

    def sparse(path: Path) -> None:
        with path.open("wb") as stream:
            stream.truncate(1 << 40)

    made: dict[str, Callable[[Path], object]] = {
        "nothing": lambda path: None,
        "an empty file": lambda path: path.touch(),
        "a folder": lambda path: path.mkdir(),
        "a pipe": os.mkfifo,
        "a link to the file": lambda path: path.symlink_to(path.parent.parent / "moved"),
        "a link to nothing": lambda path: path.symlink_to("nowhere"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a huge file": sparse,
        "a file that cannot be decoded": lambda path: path.write_bytes(b"\xff\xfe\x00" * 99),
    }
    for what, make in made.items():
        yield Case("something else", file, what, put(make))


def file_cases(original: Original) -> Iterator[Case]:
    """Other bytes, the file of another run, or something else, for every file."""
    for file in PARTS:
        data = (original.finished / file).read_bytes()
        yield from byte_cases(file, data)
        yield from special_cases(file)
        other = (original.other / file).read_bytes()
        if other != data:
            yield bytes_case("the file of another run", file, "", other)


# Checking


def outcome(case: Case, original: Original, place: Path) -> str:
    """How a case ends: `refused` or `right`; AssertionError for everything else."""
    unfinished_run = case.file.startswith("checkpoint")
    folder = place / ("unfinished" if unfinished_run else "run")
    copy_of(original.unfinished if unfinished_run else original.finished, folder)
    case.change(folder)
    context = f"{case.kind}, {case.file}, {case.what}"
    signal.alarm(LONGEST)
    accepted = False
    try:
        accepted = not unfinished_run and is_accepted(case, original, folder)
        found = state(folder) if unfinished_run else answer(folder)
    except AssertionError:
        raise
    except UnimpError as error:
        text = str(error)
        assert not accepted or case.signed, f"refused, but the page does not say so ({context})"
        assert case.kind != "no effect", f"refused without reason: {text} ({context})"
        assert str(folder) in text or case.signed, f"the file is not named: {text} ({context})"
        assert len(text) > 40, f"too short to contain a fix: {text} ({context})"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} ({context})") from error
    finally:
        signal.alarm(0)
    expected = original.state if unfinished_run else original.answer
    assert case.kind != "no effect" or found == expected, f"another answer ({context})"
    if case.file.startswith("explanations/") and found != expected:
        # A damaged explanation is left out of the page, which states how many are damaged.
        left_out = [*expected[:-3], [], 1, False]
        assert found == left_out, f"another answer ({context})"
        return "refused"
    if unfinished_run and case.what == "nothing":
        assert found == [], f"another answer ({context})"
        return "refused"
    if case.signed:
        chances = torch.tensor(found[1])
        assert bool(chances.isfinite().all()), f"not finite ({context})"
        assert torch.allclose(chances.sum(1), torch.ones(len(chances)), atol=1e-4), context
        assert not found[-1], f"a script in the page ({context})"
        return "right" if found == expected else "another valid run"
    assert found == expected, f"another answer ({context})"
    return "right"


def harmless_cases(original: Original) -> Iterator[Case]:
    """Changes without effect, after which the answer must be right."""
    manifest = json.loads((original.finished / "manifest.json").read_text())
    yield text_case("no effect", "manifest.json", "no line breaks", json.dumps(manifest))
    for file in ("notes.txt", "report.html", "later.csv"):
        yield text_case("no effect", file, "a file of the user", "mine")
    for file in (*PARTS, "checkpoint.safetensors"):
        yield Case(
            "no effect", file, "a new date", lambda folder, file=file: (folder / file).touch()
        )


def all_cases(original: Original) -> list[Case]:
    return [
        *harmless_cases(original),
        *field_cases(original),
        *checkpoint_cases(original),
        *file_cases(original),
    ]


def chosen_cases(cases: list[Case], count: int) -> list[Case]:
    """`count` cases, evenly from all kinds and files as far as possible; the same in every run."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kind, case.file.partition("/")[0]), []).append(case)
    draw = random.Random(0)
    for group in groups.values():
        draw.shuffle(group)
    chosen: list[Case] = []
    while len(chosen) < min(count, len(cases)):
        for group in groups.values():
            if group and len(chosen) < count:
                chosen.append(group.pop())
    return chosen


def check(cases: list[Case], original: Original) -> Iterator[tuple[Case, str]]:
    def waited(*_: object) -> None:
        raise TimeoutError("it waits forever")

    before = signal.signal(signal.SIGALRM, waited)
    try:
        for case in cases:
            with tempfile.TemporaryDirectory() as place:
                yield case, outcome(case, original, Path(place))
    finally:
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=4000)
    wanted = parser.parse_args().cases
    counts: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        original = originals(Path(place))
        cases = all_cases(original)
        for case, found in check(chosen_cases(cases, wanted), original):
            name = f"{case.kind}: {case.file.partition('/')[0]}"
            counts.setdefault(name, Counter())[found] += 1
            total[found] += 1
    result = {
        "command": f"python proofs/tampered_runs.py --cases {wanted}",
        "code": code_origin(),
        "possible_cases": len(cases),
        "cases": total.total(),
        "outcomes": dict(sorted(total.items())),
        "by_change": {name: dict(sorted(found.items())) for name, found in sorted(counts.items())},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{total.total()} cases, {dict(total)}: {RESULTS}")


if __name__ == "__main__":
    main()
