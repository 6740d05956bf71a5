"""Debian's own package index, read as packages and the relations between them.

The format is the stanza format of every `Packages` file in a Debian archive: fields `Name: value`,
a value folded over lines that begin with a blank, an empty line between packages.
"""

import gzip
import io
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unimp.errors import TaskError

RELATIONS = (
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Breaks",
    "Conflicts",
    "Replaces",
)
"""The eight ways in which one package names another; a kind is its position here."""

_KEPT_FIELDS = frozenset(
    {"Package", "Source", "Section", "Provides", "Tag", "Description", *RELATIONS}
)
_FIELD = re.compile(r"([!-9;-~]+):(.*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
# Commas inside the braces of `facet::{a,b}` separate tags of that facet, not entries of the field.
_COMMA_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")
_BRACE_GROUP = re.compile(r"(.*)\{([^{}]*)\}(.*)")
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"


@dataclass(frozen=True, slots=True)
class Package:
    """One package as its stanza describes it; None stands for a field that is absent."""

    name: str
    source: str
    section: str | None
    description: str
    tags: tuple[str, ...] | None
    provides: tuple[str, ...]
    relations: tuple[tuple[str, ...], ...]  # for each kind in RELATIONS, the names it mentions


@dataclass(frozen=True, slots=True)
class RelationEdges:
    """Relations between packages as triples (source, target, kind), each once, in sorted order."""

    source: NDArray[np.int64]  # [E] number of the package that states the relation
    target: NDArray[np.int64]  # [E] number of the package it names, or that provides what it names
    kind: NDArray[np.int64]  # [E] position in RELATIONS

    def counts(self) -> dict[str, int]:
        """How many edges there are of each kind."""
        per_kind = np.bincount(self.kind, minlength=len(RELATIONS))
        return {name: int(count) for name, count in zip(RELATIONS, per_kind, strict=True)}


def read_index(path: Path) -> list[Package]:
    """Packages of an index file, sorted by name; plain text, gzip or xz, told apart by content.

    Sorted, so that the numbering does not hang on the order of the file. Of several stanzas for one
    name (other versions or architectures) the first in the file stands.
    """
    raw = Path(path).read_bytes()
    try:
        if raw.startswith(_GZIP_MAGIC):
            raw = gzip.decompress(raw)
        elif raw.startswith(_XZ_MAGIC):
            raw = lzma.decompress(raw)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TaskError(
            f"{path}: the compressed index is damaged or cut short ({error}); download it again"
        ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{path}:{line}: not UTF-8 text; expected a Debian Packages index, plain, .gz or .xz"
        ) from error
    return parse_index(io.StringIO(text), where=str(path))


def parse_index(lines: Iterable[str], *, where: str = "index") -> list[Package]:
    """Packages from the lines of an index, sorted by name; `where` names the index in errors."""
    packages: dict[str, Package] = {}
    for line_number, fields in _stanzas(lines, where):
        package = _package(fields, f"{where}:{line_number}")
        packages.setdefault(package.name, package)
    if not packages:
        raise TaskError(
            f"{where}: no package in it; expected stanzas that begin with a line `Package: NAME`"
        )
    return [packages[name] for name in sorted(packages)]


def relation_edges(
    packages: Sequence[Package], *, max_providers: int | None = None
) -> RelationEdges:
    """Edges from each package to those it names.

    Every alternative of `a | b` is an edge. A virtual name, one that no package bears, leads to
    each package that provides it (with `max_providers`, to the first so many). Names that nothing
    answers to are dropped, as are relations of a package with itself.
    """
    number_of = {package.name: number for number, package in enumerate(packages)}
    providers: dict[str, list[int]] = {}
    for number, package in enumerate(packages):
        for name in package.provides:
            if name not in number_of:
                providers.setdefault(name, []).append(number)
    answering = {name: (number,) for name, number in number_of.items()} | {
        name: tuple(numbers[:max_providers]) for name, numbers in providers.items()
    }
    triples = {
        (number, target, kind)
        for number, package in enumerate(packages)
        for kind, names in enumerate(package.relations)
        for name in names
        for target in answering.get(name, ())
        if target != number
    }
    table = np.array(sorted(triples), dtype=np.int64).reshape(-1, 3)
    return RelationEdges(source=table[:, 0], target=table[:, 1], kind=table[:, 2])


def related_names(value: str, where: str = "index") -> tuple[str, ...]:
    """Package names in a relation field, less versions, architectures and build profiles.

    `a (>= 1) | b:any, c [amd64]` gives a, b, c.
    """
    names = []
    for entry in re.split(r"[,|]", value):
        entry = entry.strip()
        if not entry:  # a trailing comma is common and harmless
            continue
        match = _NAME.match(entry)
        rest = entry[match.end() :] if match else ""
        if match is None or (rest and rest[0] not in " \t(:[<"):
            raise TaskError(
                f"{where}: {entry!r} is not a package name with an optional version; "
                "expected such as `libc6 (>= 2.34)`"
            )
        names.append(match.group())
    return tuple(dict.fromkeys(names))


def expand_tags(value: str) -> tuple[str, ...]:
    """Tags of a Tag field; `facet::{a,b}` stands for `facet::a` and `facet::b`."""
    tags: list[str] = []
    for entry in _COMMA_OUTSIDE_BRACES.split(value):
        group = _BRACE_GROUP.fullmatch(entry.strip())
        if group is None:
            tags.append(entry.strip())
        else:
            before, inside, after = group.groups()
            tags.extend(before + item.strip() + after for item in inside.split(","))
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def _stanzas(lines: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each stanza's first line number and its kept fields, folded lines joined by a newline."""
    fields: dict[str, str] = {}
    seen: set[str] = set()
    first = 0
    current: str | None = None
    for number, line in enumerate(lines, start=1):
        line = line.rstrip()
        if not line:
            if seen:
                yield first, fields
            fields, seen, current = {}, set(), None
        elif line[0] in " \t":
            if current is None:
                raise TaskError(
                    f"{where}:{number}: a folded line with no field above it: {line[:60]!r}; "
                    "remove the blank before it, or the empty line above it"
                )
            if current in fields:
                fields[current] += "\n" + line.strip()
        else:
            match = _FIELD.fullmatch(line)
            if match is None:
                raise TaskError(
                    f"{where}:{number}: neither `Field: value`, a folded line nor an empty line: "
                    f"{line[:60]!r}; is this a Debian Packages index?"
                )
            # Field names are the same in any case, by Debian policy.
            current = match.group(1).title()
            if current in seen:
                raise TaskError(
                    f"{where}:{number}: a second {current} field in the stanza that begins on line "
                    f"{first}; is an empty line missing between two packages?"
                )
            if not seen:
                first = number
            seen.add(current)
            if current in _KEPT_FIELDS:
                fields[current] = match.group(2).strip()
    if seen:
        yield first, fields


def _package(fields: Mapping[str, str], where: str) -> Package:
    name = fields.get("Package", "")
    if _NAME.fullmatch(name) is None:
        found = f"the name {name!r}" if name else "no Package field"
        raise TaskError(f"{where}: a stanza with {found}; each must have a line `Package: NAME`")
    # `Source: glibc (2.36-9)` states a version where it differs from the package's own.
    source = fields.get("Source", "").partition("(")[0].strip() or name
    # Outside the main component a section reads `contrib/net`.
    section = fields.get("Section", "").rpartition("/")[2] or None
    in_package = f"{where}: package {name}"
    return Package(
        name=name,
        source=source,
        section=section,
        # Where the long description is folded in, only its first line is the synopsis.
        description=fields.get("Description", "").partition("\n")[0],
        tags=expand_tags(fields["Tag"]) if "Tag" in fields else None,
        provides=related_names(fields.get("Provides", ""), f"{in_package}, Provides"),
        relations=tuple(
            related_names(fields.get(kind, ""), f"{in_package}, {kind}") for kind in RELATIONS
        ),
    )
