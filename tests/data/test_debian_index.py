"""Debian's stanza format, and what becomes of relations between packages."""

import gzip
import lzma
from pathlib import Path

import pytest

from unimp.data.debian_index import (
    RELATIONS,
    Package,
    expand_tags,
    parse_index,
    read_index,
    related_names,
    relation_edges,
)
from unimp.errors import TaskError

INDEX = """\
Package: mutt
Section: mail
Pre-Depends: libc6 (>= 2.36)
Depends: libssl3:any (>= 3.0.0),
 ca-certificates
Recommends: mail-transport-agent | fetchmail [amd64] <!nocheck>
Breaks: mutt (<< 1.0), no-such-package
Tag: interface::text-mode, role::{program,
 plugin}, works-with::mail
Description: text-based mailreader
 The long description mentions exim4,
 .
 and goes on.


Package: libc6
Source: glibc (2.36-9)
Multi-Arch: same
Section: contrib/libs
Description: GNU C Library

package: libssl3
Source: openssl
SECTION: libs

Package: exim4
Section: mail
Provides: mail-transport-agent, default-mta (= 4.96)
Depends: libssl3, libssl3 (<< 4), mutt
Suggests: mutt
Conflicts: mail-transport-agent

Package: postfix
Section: mail
Provides: mail-transport-agent
Conflicts: mail-transport-agent

Package: ca-certificates
Tag:
"""


@pytest.fixture
def packages() -> dict[str, Package]:
    return {package.name: package for package in parse_index(INDEX.splitlines())}


def relations(packages: list[Package], **options: int) -> set[tuple[str, str, str]]:
    edges = relation_edges(packages, **options)
    return {
        (packages[a].name, RELATIONS[kind], packages[b].name)
        for a, b, kind in zip(
            edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True
        )
    }


def test_packages_stand_in_the_order_of_their_names(packages: dict[str, Package]) -> None:
    assert list(packages) == ["ca-certificates", "exim4", "libc6", "libssl3", "mutt", "postfix"]


def test_a_source_is_named_without_its_version_and_is_the_package_itself_by_default(
    packages: dict[str, Package],
) -> None:
    assert packages["libc6"].source == "glibc"
    assert packages["libssl3"].source == "openssl"
    assert packages["mutt"].source == "mutt"


def test_a_section_loses_its_component_and_may_be_absent(packages: dict[str, Package]) -> None:
    assert packages["libc6"].section == "libs"
    assert packages["libssl3"].section == "libs"
    assert packages["ca-certificates"].section is None


def test_only_the_first_line_of_a_description_is_the_synopsis(packages: dict[str, Package]) -> None:
    assert packages["mutt"].description == "text-based mailreader"


def test_tags_are_unfolded_and_brace_groups_expanded(packages: dict[str, Package]) -> None:
    assert packages["mutt"].tags == (
        "interface::text-mode",
        "role::program",
        "role::plugin",
        "works-with::mail",
    )
    assert expand_tags("a::{b, c}, d::e,") == ("a::b", "a::c", "d::e")


def test_no_tag_field_differs_from_an_empty_one(packages: dict[str, Package]) -> None:
    assert packages["libc6"].tags is None
    assert packages["ca-certificates"].tags == ()


def test_relations_reach_alternatives_folded_lines_and_providers_but_not_oneself() -> None:
    found = relations(parse_index(INDEX.splitlines()))
    assert found == {
        ("mutt", "Pre-Depends", "libc6"),
        ("mutt", "Depends", "libssl3"),
        ("mutt", "Depends", "ca-certificates"),
        ("mutt", "Recommends", "exim4"),
        ("mutt", "Recommends", "postfix"),
        ("exim4", "Depends", "libssl3"),
        ("exim4", "Depends", "mutt"),
        ("exim4", "Suggests", "mutt"),
        ("exim4", "Conflicts", "postfix"),
        ("postfix", "Conflicts", "exim4"),
    }


def test_a_name_that_a_package_bears_is_not_looked_for_among_providers() -> None:
    text = "Package: a\nDepends: b\n\nPackage: b\n\nPackage: c\nProvides: b\n"
    assert relations(parse_index(text.splitlines())) == {("a", "Depends", "b")}


def test_providers_can_be_limited_to_the_first_by_name() -> None:
    providers = "".join(f"Package: p{i}\nProvides: v\n\n" for i in (3, 1, 2))
    packages = parse_index((providers + "Package: a\nDepends: v\n").splitlines())
    limited = relations(packages, max_providers=2)
    assert limited == {("a", "Depends", "p1"), ("a", "Depends", "p2")}
    assert len(relations(packages)) == 3


def test_edges_are_counted_by_kind() -> None:
    counts = relation_edges(parse_index(INDEX.splitlines())).counts()
    assert counts == dict.fromkeys(RELATIONS, 0) | {
        "Pre-Depends": 1,
        "Depends": 4,
        "Recommends": 2,
        "Suggests": 1,
        "Conflicts": 2,
    }


def test_the_first_of_several_versions_of_a_package_stands() -> None:
    text = "Package: a\nSection: net\n\nPackage: a\nSection: mail\n"
    assert [package.section for package in parse_index(text.splitlines())] == ["net"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_plain_gzip_and_xz_indexes_read_alike_whatever_their_name(tmp_path: Path, pack) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(pack(INDEX.encode()))
    assert read_index(path) == parse_index(INDEX.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Package: a\n\n folded\n", r"index:3: a folded line with no field above it"),
        ("Package: a\nnonsense\n", r"index:2: neither `Field: value`.*Packages index\?"),
        ("Package: a\nPackage: b\n", r"index:2: a second Package .* line 1; .*empty line missing"),
        ("Package: a\n\nSection: net\n", r"index:3: a stanza with no Package field"),
        ("Package: a b\n", r"index:1: a stanza with the name 'a b'"),
        ("Package: a\nDepends: (>= 2)\n", r"index:1: package a, Depends: '\(>= 2\)' is not"),
        ("Package: a\nDepends: b{c}\n", r"'b\{c\}' is not a package name"),
        ("\n\n", r"index: no package in it"),
    ],
)
def test_a_malformed_index_is_refused_with_its_place_and_a_remedy(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_index(text.splitlines())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_an_index_cut_short_says_so(tmp_path: Path, pack) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(pack(INDEX.encode())[:-20])
    with pytest.raises(TaskError, match="damaged or cut short"):
        read_index(path)


def test_an_index_that_is_not_text_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(b"Package: a\nSection: \xff\n")
    with pytest.raises(TaskError, match="Packages:2: not UTF-8"):
        read_index(path)


def test_a_relation_is_stripped_to_its_name() -> None:
    assert related_names("g++:any (>= 4:12), a|b , libstdc++6(>=12),") == (
        "g++",
        "a",
        "b",
        "libstdc++6",
    )
