"""What tests of several stages share: a graph with everything that is awkward in it, and Triton's
interpreter where there is no GPU."""

import json
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from unimp.graph.graph import Graph

# The same examples in every run: a test that fails once fails again.
settings.register_profile("unimp", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("unimp")

if find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is first imported
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        """As Triton 3.6 does, but for loop bounds under numpy 2.4 (triton-lang/triton#9171)."""
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_lang_tensor


# A shell starts background jobs with SIGINT ignored. Use the handler that Python has in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def sign_run() -> Callable[[Path], None]:
    """A function that describes the files of a changed run, as they are now, in its manifest."""
    from unimp.runs.folder.files import file_entry, with_digest, write_json

    def sign(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        manifest["files"] = {name: file_entry(folder / name) for name in manifest["files"]}
        write_json(folder / "manifest.json", with_digest(manifest))

    return sign


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., Graph]:
    """A maker of graphs with a hub (node 0), duplicate edges, and two last nodes without edges."""

    def make(
        num_nodes: int = 30,
        num_edges: int = 120,
        *,
        features: int = 0,
        edge_features: int = 0,
        seed: int = 0,
    ) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.randint(num_nodes - 2, (2, num_edges), generator=generator)
        edges[1, : num_edges // 4] = 0
        edges[:, -(num_edges // 10) :] = edges[:, : num_edges // 10]
        x = torch.randn(num_nodes, features, generator=generator) if features else None
        attr = torch.randn(num_edges, edge_features, generator=generator) if edge_features else None
        return Graph.from_edges(edges, num_nodes=num_nodes, x=x, edge_attr=attr)

    return make
