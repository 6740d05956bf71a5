"""The examples that launch several machines, and those that prepare tables for a store."""

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import unimp
from unimp.config.recipe import load_recipe

EXAMPLES = Path(__file__).parents[1] / "examples"
LAUNCH, PREPARE = EXAMPLES / "launch", EXAMPLES / "prepare"
SMALL = [
    *("synthetic", "--set", "task.scale=0.05", "--set", "model.width=8", "--set", "train.epochs=2"),
    *("--set", "batch.regime=neighbors", "--set", "train.device=cpu"),
]


@pytest.mark.skipif(shutil.which("torchrun") is None, reason="torchrun is not on the path")
def test_two_machines_train_one_model(tmp_path: Path) -> None:
    """Both machines are this one; they find each other over TCP."""
    port = 20_000 + os.getpid() % 20_000
    own = {"MACHINES": "2", "PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(
            ["sh", LAUNCH / "torchrun.sh", str(number), *SMALL, "--out", tmp_path / "run"],
            env={**os.environ, **own},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for machine in machines:
        _, err = machine.communicate(timeout=150)
        assert machine.returncode == 0, err
    assert unimp.load_run(tmp_path / "run", device="cpu").recipe.train.draws == "node"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the path")
@pytest.mark.skipif(shutil.which("torchrun") is None, reason="torchrun is not on the path")
def test_the_script_for_slurm_trains_on_two_machines(tmp_path: Path) -> None:
    """Without Slurm: srun starts both tasks on this machine, and scontrol lists it twice."""
    commands, place = tmp_path / "bin", tmp_path / "submitted"
    commands.mkdir()
    tasks = 'SLURM_NODEID=1 "$@" & other=$!\nSLURM_NODEID=0 "$@" && wait $other'
    for name, text in (("srun", tasks), ("scontrol", "printf '127.0.0.1\\n127.0.0.1\\n'")):
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    place.mkdir()
    shutil.copy(LAUNCH / "torchrun.sh", place)
    recipe = load_recipe("synthetic").with_settings(
        {
            "task.scale": 0.05,
            "model.width": 8,
            "train.epochs": 2,
            "batch.regime": "neighbors",
            "train.device": "cpu",
        }
    )
    (place / "recipe.toml").write_text(recipe.to_toml())
    slurm = {"JOB_ID": str(os.getpid()), "NNODES": "2", "JOB_NODELIST": "a[1-2]"}
    slurm["SUBMIT_DIR"] = str(place)
    subprocess.run(
        ["bash", LAUNCH / "slurm.sbatch", "recipe.toml"],
        cwd=place,
        env={
            **os.environ,
            **{f"SLURM_{name}": value for name, value in slurm.items()},
            "PATH": f"{commands}:{os.environ['PATH']}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        },
        check=True,
        timeout=150,
    )
    assert unimp.load_run(place / "run", device="cpu").recipe.train.draws == "node"
    assert "--signal=B:TERM" in (LAUNCH / "slurm.sbatch").read_text("utf-8")


def test_the_job_for_kubeflow_starts_the_same_command() -> None:
    job = yaml.safe_load((LAUNCH / "kubeflow.yaml").read_text("utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    for machine in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = machine["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"][:4] == ["torchrun", "-m", "unimp", "train"]


@pytest.mark.parametrize("path", sorted([*LAUNCH.glob("*.py"), *PREPARE.glob("*.py")]))
def test_every_script_compiles_without_its_library(path: Path, tmp_path: Path) -> None:
    py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({str(path)!r})"]
    subprocess.run(command, check=True)


def test_ray_calls_run_in_every_process(tmp_path: Path) -> None:
    """What Ray runs in each process, without Ray."""
    import runpy

    train_one = runpy.run_path(str(LAUNCH / "ray_train.py"))["train_one"]
    settings = {"task.scale": 0.05, "train.epochs": 1, "model.width": 8, "train.device": "cpu"}
    train_one({"recipe": "synthetic", "out": str(tmp_path / "run"), "settings": settings})
    assert unimp.load_run(tmp_path / "run", device="cpu").metrics["epochs"] == 1


@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_parts_that_another_program_writes_become_a_store(library: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    topics = ["a", "b", ""]
    papers = [f"{i},{topics[i % 3]},{2000 + i % 20}" for i in range(60)]
    citations = [f"{i},{(i * 7 + 1) % 60}" for i in range(60)]
    (old / "papers.csv").write_text("\n".join(["id,topic,year", *papers]))
    (old / "citations.csv").write_text("\n".join(["citing,cited", *citations]))
    script = PREPARE / f"with_{library}.py"
    subprocess.run([sys.executable, script, old, new], check=True)
    (new / "recipe.toml").write_text(
        'name = "papers"\n[task]\nname = "tables"\n[tables]\nnodes = "nodes"\nedges = "edges"\n'
        'label = "topic"\nfeatures = { year = "numeric" }\n'
    )
    command = [sys.executable, "-m", "unimp", "data", "build", "recipe.toml", "--out", "big.graph"]
    subprocess.run(command, cwd=new, check=True)
    task = unimp.load_task(str(new / "big.graph"))
    assert task.graph.num_nodes == 60
    assert task.num_classes == 2
