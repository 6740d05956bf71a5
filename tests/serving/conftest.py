"""A store in an empty folder, with one actor of each role."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unimp.serving.people import ROLES
from unimp.serving.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as opened:
        for role in ROLES:
            opened.people.add(role, role)
        yield opened
