"""Short forms of proofs/serve_hostile.py and proofs/serve_fuzz.py."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra [serve]")

PROOFS = Path(__file__).parents[2] / "proofs"
GROUPS = ("rebinding host", "wrong token", "revoked token", "path", "two lengths", "formula")


@pytest.fixture(scope="module")
def proofs() -> object:
    sys.path.insert(0, str(PROOFS))
    try:
        import serve_fuzz
        import serve_hostile
    finally:
        sys.path.remove(str(PROOFS))
    return serve_hostile, serve_fuzz


@pytest.fixture(scope="module")
def run(proofs: tuple[object, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return proofs[0].train(tmp_path_factory.mktemp("run"))  # type: ignore[attr-defined, no-any-return]


def test_no_attack_succeeds(proofs: tuple[object, object], run: Path, tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def chosen(case: object) -> bool:
        """At most six cases per group."""
        group = case.group  # type: ignore[attr-defined]
        seen[group] = seen.get(group, 0) + 1
        return group.startswith(GROUPS) and seen[group] <= 6

    found = proofs[0].attack(tmp_path, run, chosen)  # type: ignore[attr-defined]
    assert len(found["cases"]) >= 25
    assert [case for case in found["cases"] if case["success"]] == []
    assert all(found["afterwards"].values()), found["afterwards"]


def test_random_requests_cause_no_error(
    proofs: tuple[object, object], run: Path, tmp_path: Path
) -> None:
    found = proofs[1].fuzz(tmp_path, run, 150, 1)  # type: ignore[attr-defined]
    assert found["failures"] == []
    assert found["tracebacks"] == 0
    assert found["ready afterwards"]
    assert len(found["statuses"]) >= 3
