"""The shape of the package: one direction of imports, short modules, nothing unsafe."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unimp

PACKAGE = Path(unimp.__file__).parent
# A module imports only from stages to its left, and from its own.
ORDER = (
    ("errors", "stopping"),
    ("memory",),
    ("graph",),
    ("tasks",),
    ("ops",),
    ("model",),
    ("training",),
    ("inference",),
    ("options",),
    ("recipe",),
    ("predictions", "presets", "progress", "sinks"),
    ("run_folder",),
    ("unfinished",),
    ("preparation",),
    ("scoring",),
    ("trained",),
    ("estimate",),
    ("fitting",),
    ("run",),
    ("studies", "report", "estimator", "serving", "allocator"),
    ("cli",),
    ("__main__",),
)
STAGE = {name: number for number, names in enumerate(ORDER) for name in names}
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(("unimp", *path.relative_to(PACKAGE).with_suffix("").parts))


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported; `from unimp import run_folder` counts as the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.fixture(params=MODULES, ids=[name_of(path) for path in MODULES])
def module(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def arrows_to_the_right(stage: str, tree: ast.AST) -> list[str]:
    inside = [name.split(".") for name in imported(tree) if name.split(".")[0] == "unimp"]
    stages = [parts[1] for parts in inside if len(parts) > 1 and parts[1] in STAGE]
    unknown = [".".join(p) for p in inside if len(p) < 2 or p[1] not in STAGE]
    # Names without a stage of their own come from unimp/__init__.py, which finds them anywhere;
    # its version is its own.
    unknown = [name for name in unknown if name != "unimp.__version__"]
    bad = [s for s in stages if STAGE[s] > STAGE[stage]]
    bad += [s for s in stages if STAGE[s] == STAGE[stage] and s != stage]
    return bad + unknown


def test_a_module_imports_only_from_stages_to_its_left(module: Path) -> None:
    stage = module.relative_to(PACKAGE).with_suffix("").parts[0]
    assert stage in STAGE, f"{stage} has no place in the order of stages"
    assert arrows_to_the_right(stage, tree_of(module)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import unimp.run",
        "from unimp.training.loop import fit",
        "from unimp import run_folder",
        "from unimp import Graph",
        "def f():\n    from unimp.cli import main",
    ],
)
def test_an_arrow_to_the_right_would_be_found(line: str) -> None:
    assert arrows_to_the_right("tasks", ast.parse(line))
    assert not arrows_to_the_right("tasks", ast.parse("from unimp.graph.graph import Graph"))


def test_imports_name_their_module_in_full(module: Path) -> None:
    relative = [n for n in ast.walk(tree_of(module)) if isinstance(n, ast.ImportFrom) and n.level]
    assert not relative


def test_a_module_is_named_for_what_it_holds_and_stays_short(module: Path) -> None:
    assert module.stem.strip("_") not in {"utils", "util", "common", "base", "helpers", "misc"}
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 450


def test_nothing_unpickles_or_evaluates_what_it_reads(module: Path) -> None:
    tree = tree_of(module)
    roots = {name.split(".")[0] for name in imported(tree)}
    assert not roots & {"pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
    for name, call in calls(tree):
        assert name not in {"eval", "exec", "torch.load", "torch.save", "__import__"}
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle":
                assert ast.unparse(keyword.value) == "False"


def test_every_public_name_is_there_and_there_are_few() -> None:
    assert 0 < len(unimp.__all__) <= 23
    assert len(set(unimp.__all__)) == len(unimp.__all__)
    for name in unimp.__all__:
        assert getattr(unimp, name) is not None
    assert set(unimp.__all__) <= set(dir(unimp))


def test_type_checkers_are_told_the_same_public_names_from_the_same_modules() -> None:
    tree = tree_of(PACKAGE / "__init__.py")
    told = {name for name in imported(tree) if name.startswith("unimp.")}
    assert told == {f"unimp.{unimp._MODULE_OF[name]}.{name}" for name in unimp.__all__}


def test_public_names_are_spelled_out_and_are_those_that_are_found() -> None:
    (spelled,) = (
        ast.literal_eval(node.value)
        for node in tree_of(PACKAGE / "__init__.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert spelled == unimp.__all__ == list(unimp._MODULE_OF)
    assert {name for name in dir(unimp) if not name.startswith("__")} == set(spelled)


def test_a_type_checker_refuses_a_name_that_is_not_there(tmp_path: Path) -> None:
    """On the package's own page and modules that hold nothing but these names: that is quick."""
    pytest.importorskip("mypy", reason="needs mypy")
    package = tmp_path / "unimp"
    for name, module in unimp._MODULE_OF.items():
        path = package.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        with path.open("a") as file:
            file.write(f"class {name}: ...\n")
    for name in ("__init__.py", "py.typed"):
        (package / name).write_bytes((PACKAGE / name).read_bytes())
    (tmp_path / "right.py").write_text(f"from unimp import {', '.join(unimp.__all__)}\n")
    (tmp_path / "wrong.py").write_text("from unimp import Grph\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")},
    )
    first, *rest = done.stdout.splitlines()
    assert 'wrong.py:1: error: Module "unimp" has no attribute "Grph"' in first
    assert rest == ["Found 1 error in 1 file (checked 2 source files)"]


def test_modules_are_there_whatever_was_imported_before() -> None:
    said = in_a_fresh_interpreter("""
import unimp
print(unimp.inference.correct_and_smooth.correct_and_smooth.__module__)
print(unimp.runs.folder.files.__name__, unimp.run.__module__, unimp.data.files.__name__)
for place, name in ((unimp, "Grph"), (unimp, "_Nothing"), (unimp.graph, "grph")):
    try:
        getattr(place, name)
    except AttributeError as error:
        print(error)
""")
    assert said.splitlines() == [
        "unimp.inference.correct_and_smooth",
        "unimp.runs.folder.files unimp.run unimp.data.files",
        "module 'unimp' has no attribute 'Grph'",
        "module 'unimp' has no attribute '_Nothing'",
        "module 'unimp.graph' has no attribute 'grph'",
    ]


def test_a_module_whose_need_is_not_met_says_what_it_needs() -> None:
    said = in_a_fresh_interpreter("""
import unimp
sys.modules["typer"] = None
try:
    unimp.cli
except ImportError as error:
    print(error.name)
""")
    assert said == "typer\n"


def test_a_public_name_stays_itself_when_a_module_of_that_name_is_imported() -> None:
    said = in_a_fresh_interpreter("""
import unimp.run
import unimp
from unimp.sklearn import UniMPClassifier
from unimp.runs import experiment as run
print(callable(run), unimp.run is run, run.__module__)
unimp.run = print
unimp.run("replaced")
""")
    assert said.splitlines() == ["True True unimp.run", "replaced"]


NETWORK_SHUT = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"unimp asked for the network: {args}")
for name in ("connect", "connect_ex", "bind", "sendto"):
    setattr(socket.socket, name, refuse)
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse
"""


def in_a_fresh_interpreter(program: str, **options: Any) -> str:
    """What a program prints that starts with the network shut."""
    command = [sys.executable, "-W", "error", "-c", NETWORK_SHUT + program]
    here = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=here, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fresh_import() -> str:
    """What is imported with every public name but the classifier, which is then asked for."""
    return in_a_fresh_interpreter("""
import unimp
for name in set(unimp.__all__) - {"UniMPClassifier"}:
    getattr(unimp, name)
print(*sorted({name.split(".")[0] for name in sys.modules}))
unimp.UniMPClassifier
""")


def test_importing_contacts_no_network(fresh_import: str) -> None:
    assert "unimp" in fresh_import.split()


def test_training_and_predicting_contact_no_network(tmp_path: Path) -> None:
    said = in_a_fresh_interpreter(
        """
from unimp.cli import app
small = ["task.scale=0.002", "model.width=4", "train.epochs=2", "train.device=cpu"]
settings = [word for setting in small for word in ("--set", setting)]
app(["train", "synthetic-arxiv", *settings, "--out", "run"], standalone_mode=False)
app(["predict", "run", "--out", "predictions.csv"], standalone_mode=False)
""",
        cwd=tmp_path,
    )
    assert "test" in said
    assert (tmp_path / "predictions.csv").stat().st_size > 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_program_that_asks_for_the_network_would_be_found() -> None:
    with pytest.raises(AssertionError, match="asked for the network"):
        in_a_fresh_interpreter("socket.create_connection(('localhost', 9))")


@pytest.mark.parametrize(
    "heavy",
    [
        "sklearn",
        "scipy",
        "pyarrow",
        "rich",
        "typer",
        "pandas",
        "ogb",
        "networkx",
        "torch_geometric",
    ],
)
def test_importing_leaves_out_what_only_some_callers_need(fresh_import: str, heavy: str) -> None:
    assert heavy not in fresh_import.split()


SLOW = {"torch", "scipy", "sklearn", "pyarrow", "numpy", "pandas"}


def test_help_of_every_command_is_shown_without_what_only_work_needs() -> None:
    said = in_a_fresh_interpreter("""
import typer
from unimp.cli import app
def paths(command, path):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, [*path, name])
for path in paths(typer.main.get_command(app), []):
    app([*path, "--help"], standalone_mode=False)
    print("shown:", *path)
print("imported:", *sorted({name.split(".")[0] for name in sys.modules}))
""")
    lines = said.splitlines()
    assert {"shown:", "shown: train", "shown: recipe list", "shown: data fetch"} <= set(lines)
    assert not SLOW & set(lines[-1].split())


def test_importing_the_package_or_its_errors_waits_for_nothing_slow() -> None:
    said = in_a_fresh_interpreter("""
from unimp import UnimpError
print(*sorted({name.split(".")[0] for name in sys.modules}))
""")
    assert "unimp" in said.split()
    assert not SLOW & set(said.split())
