"""Store weights and the state of training in safetensors files, without pickle."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from unimp.data.files import digest_of, open_regular, write_atomically
from unimp.errors import ModelError, RunError
from unimp.model.node_model import NodeModel
from unimp.model.solved_model import SolvedModel
from unimp.training.interruption import Interruption
from unimp.training.loop import Epoch, Position, TrainingState

FORMAT = 1
SHARE = 20
"""Writing checkpoints takes at most 1/SHARE of the time."""
MAX_LOST = 5.0
"""At the end of training a checkpoint is written if more seconds than this could be lost."""


_RESTORE = (
    "Restore the file from a copy. If another version of unimp trained the run, train it again in "
    "another folder."
)


def save_weights(model: NodeModel, path: Path) -> None:
    """Write the weights, each tensor once: layers may share an edge encoder."""
    write_atomically(path, save(_distinct(model)))


def load_weights(model: NodeModel, path: Path) -> None:
    """Read weights into a model; raise RunError with the differences if they do not fit."""
    try:
        with open_regular(path) as file:
            tensors = load(file.read())
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"cannot read the weights in {path}: {error}. {_RESTORE}") from error
    for prefix, part in model.named_modules():  # an ensemble contains models as members
        if isinstance(part, SolvedModel):
            start = f"{prefix}." if prefix else ""
            own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            try:
                part.take_shapes(own)
            except ModelError as error:
                raise RunError(f"the weights in {path} are damaged: {error}. {_RESTORE}") from None
    expected = _distinct(model)
    if problems := _misfits(tensors, expected):
        raise RunError(
            f"the weights in {path} do not fit their recipe: {'; '.join(problems)}. {_RESTORE}"
        )
    if broken := [name for name, value in tensors.items() if not bool(value.isfinite().all())]:
        raise RunError(f"the weights in {path} are not finite in {', '.join(broken)}. {_RESTORE}")
    for name, value in expected.items():
        value.copy_(tensors[name])


def refuse_other_shape(state: TrainingState, model: NodeModel, path: Path) -> None:
    """Raise RunError if the model does not have the structure of the stored one."""
    if problems := _misfits(state.part("weights"), model.state_dict()):
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise RunError(
            f"cannot resume from {path} with a different model: "
            f"{'; '.join(problems[:3])}{more}. Use the model that the run was started with, or "
            "choose another folder."
        )


def _misfits(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the reasons why tensors are not the weights of a model with the expected ones."""
    problems = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
    problems += [f"{name} is not part of the model" for name in tensors.keys() - expected.keys()]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model needs {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    problems += [
        f"{name} is {tensors[name].dtype}, the model needs {value.dtype}"
        for name, value in expected.items()
        if name in tensors and tensors[name].dtype != value.dtype
    ]
    return sorted(problems)


def _distinct(model: NodeModel) -> dict[str, Tensor]:
    """Return the state by name; a tensor with several names appears under the first one."""
    seen: set[int] = set()
    distinct = {}
    for name, value in model.state_dict().items():
        if value.data_ptr() not in seen:
            distinct[name] = value.contiguous()
            seen.add(value.data_ptr())
    return distinct


class Checkpoints:
    """The checkpoint of one run; it is called between steps and writes the file when it is due.

    It is due after the first step, then every `every` seconds (0: never), when training has ended,
    and when a signal requests a stop, which is then delivered.
    """

    def __init__(
        self,
        path: Path,
        made_with: Mapping[str, Any],
        *,
        every: float,
        interruption: Interruption,
    ) -> None:
        self.path, self.made_with = path, made_with
        self._every, self._interruption = every, interruption
        self._written = time.monotonic() if path.exists() else float("-inf")
        self._took = 0.0

    def __call__(self, state: Callable[[], TrainingState], ended: bool) -> None:
        since = time.monotonic() - self._written
        pause = max(self._every, SHARE * self._took) if self._every else float("inf")
        stopping = self._interruption.requested is not None
        if stopping or since >= (min(pause, MAX_LOST) if ended else pause):
            started = time.monotonic()
            save_checkpoint(self.path, state(), self.made_with)
            self._written = time.monotonic()
            self._took = self._written - started
        if stopping:
            self._interruption.deliver()


def save_checkpoint(path: Path, state: TrainingState, made_with: Mapping[str, Any]) -> None:
    """Write the state of training and the settings it was `made_with` as one file."""
    about: dict[str, Any] = {
        "format": FORMAT,
        "made_with": dict(made_with),
        "position": vars(state.position),
        "history": [[e.epoch, e.loss, e.seconds, e.scores] for e in state.history],
        "best": state.best,
        "sum": _sum(state.tensors),
    }
    about["digest"] = digest_of(about)
    tensors = {name: value.contiguous() for name, value in state.tensors.items()}
    write_atomically(path, save(tensors, metadata={"unimp": json.dumps(about)}))


def read_about(path: Path) -> dict[str, Any]:
    """Read the description of a checkpoint without its tensors: `made_with`, `position`, …"""
    return _read_checkpoint(path, tensors=False)[0]


def load_checkpoint(path: Path) -> TrainingState:
    """Read the state of training; raise RunError if the file is damaged."""
    about, tensors = _read_checkpoint(path, tensors=True)
    if _sum(tensors) != about["sum"]:
        raise _damaged(path, "its checksum does not match its tensors")
    try:
        history = tuple(Epoch(*line) for line in about["history"])
        return TrainingState(tensors, Position(**about["position"]), history, about["best"])
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}") from error


def _read_checkpoint(path: Path, *, tensors: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        open_regular(path).close()
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["unimp"])
            if about["format"] != FORMAT:
                raise _damaged(path, f"it has format {about['format']}, not {FORMAT}")
            if digest_of(about) != about["digest"]:
                raise _damaged(path, "its description was changed")
            names = file.keys() if tensors else ()
            # Copies, because the tensors read here are parts of the file.
            return about, {name: file.get_tensor(name).clone() for name in names}
    except RunError:
        raise
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _damaged(path, why) from error


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"cannot resume from {path}: {why}. Remove it to start this run again.")


def _sum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        rows = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(rows.numpy().data, zlib.crc32(name.encode(), total))
    return total
