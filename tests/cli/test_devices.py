"""`unimp train --devices`: several processes train one model."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from child_processes import children_of
from safetensors.torch import load_file

import unimp
from unimp.cli.console import LOST
from unimp.cli.processes import without_devices
from unimp.config.run_files import CHECKPOINT, WEIGHTS

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gloo over files needs a POSIX system")

COMMON = [
    *("--set", "task.scale=0.05", "--set", "model.width=8", "--set", "model.layers=2"),
    *("--set", "batch.regime=neighbors", "--set", "batch.batch_size=16"),
    *("--set", "train.device=cpu", "--set", "train.checkpoint_every=0"),
]

PORT = 20_000 + 8 * (os.getpid() % 1_000)


def start(
    folder: Path,
    devices: int | None = None,
    *more: str,
    epochs: int = 3,
    launcher: Sequence[str] = (sys.executable, "-m", "unimp"),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    command = [*launcher, "train", "synthetic", "--out", str(folder), *COMMON]
    command += [] if devices is None else ["--devices", str(devices)]
    return subprocess.Popen(
        [*command, "--set", f"train.epochs={epochs}", *more],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, devices: int, *more: str, epochs: int = 3) -> str:
    process = start(folder, devices, *more, epochs=epochs)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def weights_hash(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted training with two processes."""
    folder = tmp_path_factory.mktemp("devices") / "run"
    assert train(folder, 2).count("run folder:") == 1  # only the first process prints
    return folder


def test_two_processes_train_the_model_of_one(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "one", 1)
    two, one = (unimp.load_run(path, device="cpu") for path in (whole, tmp_path / "one"))
    assert two.metrics["scores"]["train"] == pytest.approx(one.metrics["scores"]["train"])
    assert (two.predict() - one.predict()).abs().max() < 1e-3
    assert two.recipe.train.draws == "node"
    assert "run folder" in train(whole, 2)  # it is finished, so it is loaded


def test_a_killed_process_is_replaced_and_the_result_is_the_same(
    whole: Path, tmp_path: Path
) -> None:
    process = start(tmp_path / "killed", 2)
    wait_for(tmp_path / "killed" / CHECKPOINT)
    for number in children_of(process)[1:]:
        os.kill(number, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "start again" in err
    assert weights_hash(tmp_path / "killed") == weights_hash(whole)


def test_torchrun_replaces_a_killed_process_and_the_result_is_the_same(
    whole: Path, tmp_path: Path
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-port", str(PORT), "--max-restarts", "1", "-m", "unimp"]
    process = start(tmp_path / "killed", launcher=launcher)
    wait_for(tmp_path / "killed" / CHECKPOINT)
    os.kill(children_of(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "resuming in epoch" in err
    assert weights_hash(tmp_path / "killed") == weights_hash(whole)


def test_two_machines_replace_a_killed_process_and_the_result_is_the_same(
    whole: Path, tmp_path: Path
) -> None:
    """Two launchers on this computer act as two machines; each counts its own restarts."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{PORT + 2}"]
    launcher += ["--rdzv-id", "killed", "--max-restarts", "3", "-m", "unimp"]
    own = {"GLOO_SOCKET_IFNAME": "lo"}
    machines = [start(tmp_path / "killed", launcher=launcher, environment=own) for _ in range(2)]
    wait_for(tmp_path / "killed" / CHECKPOINT)
    (worker,) = children_of(machines[1])
    os.kill(worker, signal.SIGKILL)
    for machine in machines:
        _, err = machine.communicate(timeout=120)
        assert machine.returncode == 0, err
    assert "exitcode: -9" in err, err
    assert weights_hash(tmp_path / "killed") == weights_hash(whole)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_does_not_answer_ends_the_training_with_a_clear_message(
    stopped: int, tmp_path: Path
) -> None:
    """Most of the time, the first process scores the model and the second one waits for it."""
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    own["MASTER_PORT"] = str(PORT + 4 + stopped)
    processes = [
        start(
            tmp_path / "run",
            None,
            *("--set", "train.rank_timeout=3", "--set", "inference.chunk_edges=1"),
            epochs=1000,
            environment={**own, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        wait_for(tmp_path / "run" / CHECKPOINT)
        processes[stopped].send_signal(signal.SIGSTOP)
        other = processes[1 - stopped]
        _, err = other.communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert other.returncode == LOST
    assert "did not answer in time" in err
    assert "Traceback" not in err


def test_a_training_that_was_stopped_ends_like_an_uninterrupted_one_with_another_number(
    tmp_path: Path,
) -> None:
    last = ["--set", "train.eval_from=150"]  # the weights of the last epoch are stored
    process = start(tmp_path / "stopped", 2, *last, epochs=150)
    wait_for(tmp_path / "stopped" / CHECKPOINT)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped in epoch" in err
    assert "stopped in epoch 1 " not in err  # the state of the last step is stored
    assert "resuming" in train(tmp_path / "stopped", 1, *last, epochs=150)
    train(tmp_path / "whole", 1, *last, epochs=150)
    found, expected = (load_file(tmp_path / name / WEIGHTS) for name in ("stopped", "whole"))
    for name in expected:
        if not name.endswith("key.bias"):  # it has no effect, and its gradient is rounding only
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_an_ensemble_is_refused_in_one_message(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 2, "--set", "ensemble.portfolio=quick")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.count("error:") == 1
    assert "ensemble.portfolio=none" in err
    assert not (tmp_path / "run").exists()


def test_the_option_is_not_passed_on() -> None:
    arguments = ["train", "cora", "--devices", "2", "--seeds", "0", "--devices=3"]
    assert without_devices(arguments) == ["train", "cora", "--seeds", "0"]


def test_a_seed_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """The first process cannot score the weights of a seed; the others go on to the next seed."""
    more = ["--set", "batch.regime=full", "--set", "train.eval_from=6", "--set", "train.lr=1e20"]
    process = start(tmp_path / "run", 2, "--seeds", "0,1", *more, epochs=6)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert err.count("error:") == 1
    assert "seed 0" in err
    assert "seed 1" in err
