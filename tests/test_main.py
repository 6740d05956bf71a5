"""The start of the command `unimp`."""

from __future__ import annotations

import os

import pytest

from unimp import __main__ as main


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])
def test_threads_of_a_command_sleep_while_they_wait(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("open_streams", "handle_signals"):
        monkeypatch.setattr(main, name, lambda *_: None)
    monkeypatch.setattr("unimp.cli.program", lambda: found.append(os.environ["OMP_WAIT_POLICY"]))
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    main.program()
    assert found == [expected]
