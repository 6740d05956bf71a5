"""The shape of the package: the order of imports, public names, what is loaded when, and safety."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unimp

PACKAGE = Path(unimp.__file__).parent
README = Path(__file__).parents[1] / "README.md"

ORDER = (
    "errors",
    "config",
    "graph",
    "tasks",
    "data",
    "ops",
    "model",
    "training",
    "inference",
    "ensemble",
    "analysis",
    "tracking",
    "report",
    "runs",
    "studies",
    "serving",
    "sklearn",
    "cli",
)
"""A package imports only from packages before it."""

MOST_LINES = 450
TREES = {
    path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
}


def name_of(path: Path) -> str:
    """The path of a module inside the package, such as `ops/attention.py`."""
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def existing_packages() -> set[str]:
    """The packages and modules directly in `src/unimp`, other than the two entry points."""
    return {package_of(path) for path in TREES} - {"__init__", "__main__"}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Full names of everything that is imported, anywhere in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def late_imports(package: str, tree: ast.AST) -> list[str]:
    """The imports of a module of `package` that go to a package after it, or to no package.

    A public name imported from `unimp` itself could come from anywhere, so it counts too; the
    version is defined there. An import inside a function, or for type checkers only, counts as any
    other.
    """
    late = []
    for name in imports_of(tree):
        parts = name.split(".")
        if parts[0] not in ("unimp", "") or name == "unimp.__version__":
            continue
        target = parts[1] if len(parts) > 1 else ""
        is_before = target in ORDER and ORDER.index(target) < ORDER.index(package)
        if target != package and not is_before:
            late.append(name)
    return late


def test_a_package_imports_only_from_packages_before_it() -> None:
    found = {
        name_of(path): late
        for path, tree in TREES.items()
        if package_of(path) in ORDER and (late := late_imports(package_of(path), tree))
    }
    assert found == {}
    assert existing_packages() <= set(ORDER)


@pytest.mark.parametrize(
    "line",
    [
        "import unimp.training.loop",
        "from unimp.training.loop import fit",
        "from unimp import training",
        "from unimp import Graph",
        "import unimp",
        "from ..training import loop",
        "def f():\n    from unimp.cli import main",
        "if TYPE_CHECKING:\n    from unimp.runs.run import Run",
        "from unimp.utils import anything",
    ],
)
def test_an_import_against_the_order_would_be_found(line: str) -> None:
    assert late_imports("tasks", ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "from unimp.graph.graph import Graph",
        "from unimp.tasks.labels import Split",
        "from unimp import __version__",
        "import torch",
    ],
)
def test_imports_in_the_order_are_accepted(line: str) -> None:
    assert late_imports("tasks", ast.parse(line)) == []


def test_the_readme_draws_the_packages_in_this_order() -> None:
    text = README.read_text(encoding="utf-8")
    marked = re.search(r"<!-- packages -->(.*?)<!-- end -->", text, re.DOTALL)
    if marked is None:
        pytest.skip("README.md has no picture of the packages yet")
    drawn = re.findall(r"^[├└]── (\w+)", marked[1], re.MULTILINE)
    drawn = [name for name in drawn if name != "__init__"]
    assert drawn == [name for name in ORDER if name in existing_packages()]


def test_modules_have_specific_names_and_are_short() -> None:
    vague = {"utils", "util", "common", "base", "helpers", "misc"}
    assert [
        name_of(p) for p in TREES if vague & {part.strip("_") for part in (p.stem, p.parent.name)}
    ] == []
    lines = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in TREES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def unsafe(tree: ast.AST) -> list[str]:
    """Calls and imports that could execute what is read from a file."""
    pickling = {"pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
    found = [name for name in imports_of(tree) if name.split(".")[0] in pickling]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in {"eval", "exec", "torch.load", "torch.save", "__import__"}:
            found.append(called)
        found += [
            f"{called}({keyword.arg})"
            for keyword in node.keywords
            if keyword.arg in ("allow_pickle", "bytecode_cache")  # jinja2 unpickles the latter
            and ast.unparse(keyword.value) not in ("False", "None")
        ]
    return found


def test_nothing_unpickles_or_evaluates_input() -> None:
    assert {name_of(path): bad for path, tree in TREES.items() if (bad := unsafe(tree))} == {}
    for line in (
        "import pickle",
        "eval(text)",
        "torch.load(path)",
        "np.load(p, allow_pickle=True)",
        "Environment(bytecode_cache=stored)",
    ):
        assert unsafe(ast.parse(line))
    assert not unsafe(ast.parse("np.load(path, allow_pickle=False)\nmodel.eval()"))


# Public names


def test_public_names_are_spelled_out_and_importable() -> None:
    (written,) = (
        ast.literal_eval(node.value)
        for node in TREES[PACKAGE / "__init__.py"].body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert written == unimp.__all__ == list(unimp._MODULE_OF)
    assert len(set(written)) == len(written)
    assert {name for name in dir(unimp) if not name.startswith("__")} == set(written)
    for name in written:
        assert getattr(unimp, name) is not None
    with pytest.raises(AttributeError, match="Grph"):
        unimp.Grph  # noqa: B018


def test_type_checkers_see_the_same_public_names_from_the_same_modules() -> None:
    seen = {name for name in imports_of(TREES[PACKAGE / "__init__.py"]) if name[:6] == "unimp."}
    assert seen == {f"unimp.{unimp._MODULE_OF[name]}.{name}" for name in unimp.__all__}


def test_a_type_checker_refuses_a_name_that_does_not_exist(tmp_path: Path) -> None:
    """The real `__init__.py` beside modules that contain only the public names, which is fast."""
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
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert errors[0].startswith("wrong.py:1:")
    assert "Grph" in errors[0]


# What is loaded, and the network

NETWORK_SHUT = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"unimp asked for the network: {args}")
for name in ("connect", "connect_ex", "bind", "sendto"):
    setattr(socket.socket, name, refuse)
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse
def loaded():
    return " ".join(sorted({name.split(".")[0] for name in sys.modules}))
"""
SLOW = {"torch", "scipy", "sklearn", "pyarrow", "numpy", "pandas"}


def in_a_new_process(program: str, **options: Any) -> str:
    """The output of a program that runs without a network, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", NETWORK_SHUT + program]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_slow() -> None:
    modules = in_a_new_process(
        "import unimp\nfrom unimp import UnimpError\nprint(loaded())"
    ).split()
    assert "unimp" in modules
    assert not SLOW & set(modules)


def test_public_names_load_without_network_and_without_what_few_callers_need() -> None:
    modules = in_a_new_process("""
import unimp
for name in set(unimp.__all__) - {"UniMPClassifier"}:
    getattr(unimp, name)
print(loaded())
unimp.UniMPClassifier
""").split()
    assert "torch" in modules
    optional = {"sklearn", "scipy", "pyarrow", "rich", "typer", "jinja2", "pandas", "matplotlib"}
    optional |= {"ogb", "networkx", "torch_geometric", "tensorboard", "wandb", "mlflow"}
    assert sorted(optional & set(modules)) == []


def test_the_help_of_every_command_loads_nothing_slow() -> None:
    output = in_a_new_process("""
import typer
from unimp.cli import app
def paths(command, path):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, [*path, name])
for path in paths(typer.main.get_command(app), []):
    app([*path, "--help"], standalone_mode=False)
    print("shown:", *path)
print(loaded())
""")
    lines = output.splitlines()
    assert {"shown:", "shown: train", "shown: recipe list", "shown: data fetch"} <= set(lines)
    assert not SLOW & set(lines[-1].split())


def test_training_and_predicting_contact_no_network(tmp_path: Path) -> None:
    output = in_a_new_process(
        """
from unimp.cli import app
small = ["task.scale=0.002", "model.width=4", "train.epochs=2", "train.device=cpu"]
settings = [word for setting in small for word in ("--set", setting)]
app(["train", "synthetic-arxiv", *settings, "--out", "run"], standalone_mode=False)
app(["predict", "run", "--out", "predictions.csv"], standalone_mode=False)
""",
        cwd=tmp_path,
    )
    assert "test" in output
    assert (tmp_path / "predictions.csv").stat().st_size > 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_program_that_uses_the_network_would_be_found() -> None:
    with pytest.raises(AssertionError, match="asked for the network"):
        in_a_new_process("socket.create_connection(('localhost', 9))")
