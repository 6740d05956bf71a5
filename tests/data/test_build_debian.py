"""The script that builds Debian bundles: the stanza format, relations, features and files."""

import gzip
import lzma
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts_as_modules import load_script
from small_debian_index import INDEX as SMALL

from unimp.data import debian
from unimp.data.debian import RELATIONS, load_debian
from unimp.errors import TaskError

build = load_script("build-debian")
Package, build_bundle = build.Package, build.build_bundle
expand_tags, name_pieces, parse_index = build.expand_tags, build.name_pieces, build.parse_index
read_index, related_names, relation_edges = (
    build.read_index,
    build.related_names,
    build.relation_edges,
)

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


def test_the_first_of_several_versions_of_a_package_counts() -> None:
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
        ("Package: a\n\n folded\n", r"index, line 3: .*folded"),
        ("Package: a\nnonsense\n", r"index, line 2: .*nonsense.*Packages index"),
        ("Package: a\nPackage: b\n", r"index, line 2: .*Package .*line 1.*empty line"),
        ("Package: a\n\nSection: net\n", r"index, line 3: .*no Package field"),
        ("Package: a b\n", r"index, line 1: .*'a b'"),
        ("Package: a\nDepends: (>= 2)\n", r"index, line 1: package a, Depends: '\(>= 2\)'"),
        ("Package: a\nDepends: b{c}\n", r"'b\{c\}'"),
        ("\n\n", r"index: contains no package"),
    ],
)
def test_a_malformed_index_is_refused_with_its_place_and_a_remedy(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_index(text.splitlines())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_an_incomplete_index_is_refused(tmp_path: Path, pack) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(pack(INDEX.encode())[:-20])
    with pytest.raises(TaskError, match=r"Packages: .*damaged"):
        read_index(path)


def test_an_index_that_is_not_text_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(b"Package: a\nSection: \xff\n")
    with pytest.raises(TaskError, match="Packages, line 2: not UTF-8"):
        read_index(path)


def test_a_relation_is_stripped_to_its_name() -> None:
    assert related_names("g++:any (>= 4:12), a|b , libstdc++6(>=12),") == (
        "g++",
        "a",
        "b",
        "libstdc++6",
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of five packages, beside its index."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "Packages").write_text(SMALL)
    build_bundle(folder / "Packages", folder / "small.npz")
    return folder / "small.npz"


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parents[2] / "scripts" / "build-debian"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_script_writes_a_bundle_that_can_be_loaded(small: Path, tmp_path: Path) -> None:
    done = run_script(small.parent / "Packages", tmp_path / "built.npz")
    assert done.returncode == 0, done.stderr
    assert "packages: 5" in done.stdout.splitlines()
    assert (
        load_debian(bundle=tmp_path / "built.npz").node_names
        == load_debian(bundle=small).node_names
    )


def test_the_script_reports_a_missing_index_without_a_traceback(tmp_path: Path) -> None:
    done = run_script(tmp_path / "none", tmp_path / "out.npz")
    assert done.returncode != 0
    assert str(tmp_path / "none") in done.stderr
    assert "Traceback" not in done.stderr


def test_building_twice_gives_the_same_file(small: Path, tmp_path: Path) -> None:
    build_bundle(small.parent / "Packages", tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == small.read_bytes()


def test_no_word_of_a_description_is_in_the_bundle(small: Path) -> None:
    with np.load(small, allow_pickle=False) as file:
        content = b" ".join(file[key].tobytes() for key in file.files)
    assert b"alpha-doc" in content
    for word in (b"people", b"documentation", b"library", b"server"):
        assert word not in content


def test_features_do_not_depend_on_labels_or_relations(small: Path, tmp_path: Path) -> None:
    hidden = ("Section:", "Tag:", "Depends:", "Suggests:", "Breaks:", "Replaces:")
    bare = [line for line in SMALL.splitlines() if not line.startswith(hidden)]
    (tmp_path / "Packages").write_text("\n".join([*bare, "Section: net"]))
    build_bundle(tmp_path / "Packages", tmp_path / "bare.npz")
    with np.load(small) as whole, np.load(tmp_path / "bare.npz") as cut:
        assert np.array_equal(whole["x"], cut["x"])


def test_a_name_is_known_by_its_tokens_its_beginning_and_its_end() -> None:
    pieces = name_pieces("python3-numpy-doc")
    assert {"token python", "token numpy", "first python", "last doc"} <= set(pieces)
    assert {"begins pyt", "ends doc"} <= set(pieces)
    assert "token 3" not in pieces


def test_too_few_sources_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "Packages").write_text("Package: a\nSection: net\n\nPackage: b\nSection: net\n")
    with pytest.raises(TaskError, match=r"Packages.* 2 source packages"):
        build_bundle(tmp_path / "Packages", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def bookworm_index() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("UNIMP_DATA", beside)) / "debian-bookworm.Packages.xz"
    if not path.exists():
        pytest.skip("needs $UNIMP_DATA/debian-bookworm.Packages.xz")
    return path


def test_the_published_edge_counts_hold_with_five_providers_a_virtual_package() -> None:
    edges = relation_edges(read_index(bookworm_index()), max_providers=5)
    assert edges.counts() == {
        "Pre-Depends": 1_025,
        "Depends": 272_283,
        "Recommends": 30_813,
        "Suggests": 25_938,
        "Enhances": 1_838,
        "Breaks": 5_987,
        "Conflicts": 2_205,
        "Replaces": 4_272,
    }
    assert len(np.unique(edges.source * 63_620 + edges.target)) == 337_857


def test_the_bundle_is_what_the_index_gives(tmp_path: Path) -> None:
    counts = build_bundle(bookworm_index(), tmp_path / "rebuilt.npz")
    assert counts["packages"] == 63_620
    assert counts["Depends"] == 275_217
    with np.load(debian.BUNDLE) as shipped, np.load(tmp_path / "rebuilt.npz") as rebuilt:
        assert shipped.files == rebuilt.files
        for key in shipped.files:
            if key != "x":
                assert np.array_equal(shipped[key], rebuilt[key]), key
        # Another processor's arithmetic may turn late, nearly equal directions of the SVD a little;
        # the space they span, and so the products of rows, hardly changes.
        ours, theirs = (file["x"][::50].astype(np.float64) for file in (shipped, rebuilt))
        ours, theirs = ours @ ours.T, theirs @ theirs.T
        assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(ours)
