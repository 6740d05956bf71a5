"""Examples run from any folder and without optional packages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("file", "lacks", "extra"),
    [
        ("own_module.py", "torch_geometric", "pip install '.[pyg]'"),
        ("graph_libraries.py", "torch_geometric", "pip install '.[pyg,networkx]'"),
        ("graph_libraries.py", "networkx", "pip install '.[pyg,networkx]'"),
    ],
)
def test_an_example_without_its_extra_says_what_to_install(
    file: str, lacks: str, extra: str
) -> None:
    program = (
        f"import sys, runpy; sys.modules[{lacks!r}] = None; "
        f"runpy.run_path({str(EXAMPLES / file)!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert extra in result.stderr
    assert "Traceback" not in result.stderr


def test_the_example_of_two_frames_finds_its_tables_from_any_folder(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "own-data", tmp_path / "own-data")
    whole = (EXAMPLES / "own_data.py").read_text(encoding="utf-8")
    start = whole.index("task = unimp")  # what follows trains; the tables are read before
    (tmp_path / "own_data.py").write_text(whole[:start] + "print(len(nodes), len(edges))\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = subprocess.run(
        [sys.executable, str(tmp_path / "own_data.py")],
        cwd=elsewhere,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
