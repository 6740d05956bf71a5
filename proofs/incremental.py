"""Show that answers which follow changes equal cold predictions, after any sequence of changes.

    python proofs/incremental.py --sequences 1000     → proofs/results/incremental.json

A sequence starts from a random graph, a model with random weights and some labels. Labels are
given, changed and retracted, features change, nodes are added, and edges are added, replaced and
removed, in random order. Some changes wait as pending ones: then the logits of a few nodes are
pulled, and at a random time all pending changes are committed, one by one or together. Every pulled
row, and after commits all rows, are compared with `predict_logits` of a graph that is built again
from a plain list of edges. No difference may exceed 1e-5.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from unimp.data.files import write_atomically
from unimp.data.structure import with_structure
from unimp.ensemble.calibration import Calibration
from unimp.ensemble.model import Ensemble, EnsembleLogits, Entry
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.recomputation import FullRecomputation
from unimp.inference.logits import predict_logits
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.grand import GRAND
from unimp.model.label_propagation import LabelPropagation
from unimp.model.masked_labels import MaskedLabels
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.ridge import Ridge
from unimp.model.unimp import UniMP
from unimp.tasks.task import Sizes
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "incremental.json"
LIMIT = 1e-5
FEATURES, EDGE_FEATURES, CLASSES = 5, 2, 3

Make = Callable[[Sizes], NodeModel]


@dataclass(frozen=True)
class Kind:
    """A model, and the graph that it runs on."""

    models: tuple[Make, ...]  # several: the members of an ensemble
    edge_features: bool = True
    multilabel: bool = False
    structure: bool = False
    sparse: bool = False


def unimp(**options: object) -> Make:
    return lambda sizes: UniMP(sizes, width=4, **options)  # type: ignore[arg-type]


KINDS: dict[str, Kind] = {
    "unimp, gated": Kind((unimp(gate="all"),)),
    "unimp, gated, no edge features": Kind((unimp(gate="all"),), edge_features=False),
    "unimp, simple residual": Kind((unimp(residual="simple"),)),
    "unimp, no residual": Kind((unimp(residual="none"),)),
    "unimp, linear head": Kind((unimp(layers=2, head="linear", edge_encoder="shared"),)),
    "unimp, batch norm": Kind((unimp(norm="batch"),)),
    "unimp, propagated labels": Kind((unimp(propagated_labels=True),)),
    "unimp, labels alone": Kind((unimp(use_features=False, label_width=6),)),
    "unimp, structural columns": Kind((unimp(),), structure=True),
    "unimp, sparse features": Kind((unimp(feature_encoder=True),), sparse=True),
    "unimp, sparse and structural": Kind((unimp(feature_encoder=True),), True, False, True, True),
    "unimp, binary tasks": Kind((unimp(gate="all"),), multilabel=True),
    "unimp, binary tasks, propagated": Kind((unimp(propagated_labels=True),), multilabel=True),
    "gcn": Kind((unimp(layer="gcn", residual="none"),)),
    "gcn, propagated labels": Kind((unimp(layer="gcn", propagated_labels=True),)),
    "gat": Kind((unimp(layer="gat"),)),
    "sage": Kind((unimp(layer="sage", residual="simple"),)),
    "appnp": Kind((lambda sizes: APPNP(sizes, width=4, steps=4),)),
    "appnp with labels": Kind(
        (lambda sizes: MaskedLabels(APPNP(sizes.with_width(6), width=4, steps=3), sizes, width=6),)
    ),
    "grand": Kind((lambda sizes: GRAND(sizes, width=4, steps=3),)),
    "gcn-lpa": Kind((lambda sizes: GCNLPA(sizes, width=4),)),
    "mlp": Kind((lambda sizes: MLP(sizes, width=4),)),
    "ridge": Kind((lambda sizes: Ridge(sizes, hops=3, use_labels=True),)),
    "ridge, concatenated": Kind((lambda sizes: Ridge(sizes, hops=2, hop_features="concat"),)),
    "label propagation": Kind((lambda sizes: LabelPropagation(sizes, steps=10),)),
    "a module of one's own": Kind(
        (lambda sizes: MaskedLabels(EdgeSum(6, CLASSES), sizes, width=6),)
    ),
    "ensemble": Kind(
        (
            unimp(gate="all"),
            unimp(layer="gcn"),
            lambda sizes: LabelPropagation(sizes, steps=5),
            lambda sizes: MLP(sizes, width=4),
        )
    ),
    "ensemble, binary tasks": Kind((unimp(), unimp(layer="sage")), multilabel=True),
}


class EdgeSum(nn.Module):
    """A user's own module, whose layers are not known."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.linear(h)
        return rows + torch.zeros_like(rows).index_add_(0, edge_index[1], rows[edge_index[0]])


@dataclass
class World:
    """The true state: a list of edges, features and labels, in plain Python."""

    kind: Kind
    seed: int
    edges: list[tuple[int, int, list[float]]] = field(default_factory=list)
    x: list[list[float]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        nodes = self.random.randint(2, 30)
        self.x = [self.row(FEATURES) for _ in range(nodes)]
        self.labels = [self.label() for _ in range(nodes)]
        hub = self.random.randrange(nodes)
        for _ in range(self.random.randint(0, 3 * nodes)):
            target = hub if self.random.random() < 0.2 else self.random.randrange(nodes)
            self.edges.append((self.random.randrange(nodes), target, self.row(EDGE_FEATURES)))

    def row(self, width: int) -> list[float]:
        return [round(self.random.gauss(0, 1), 3) for _ in range(width)]

    def label(self) -> list[int]:
        if self.kind.multilabel:
            return [self.random.choice((-1, 0, 1)) for _ in range(CLASSES)]
        return [self.random.randrange(-1, CLASSES)]

    @property
    def num_nodes(self) -> int:
        return len(self.x)

    @property
    def observed(self) -> Tensor:
        labels = torch.tensor(self.labels)
        return labels.to(torch.int8) if self.kind.multilabel else labels[:, 0]

    @property
    def graph(self) -> Graph:
        """The graph without structural columns, built again."""
        ends = torch.tensor([edge[:2] for edge in self.edges]).reshape(-1, 2).t()
        attr = torch.tensor([edge[2] for edge in self.edges]).reshape(-1, EDGE_FEATURES)
        x = torch.tensor(self.x)
        return Graph.from_edges(
            ends,
            x=csr_array(x.relu().numpy()) if self.kind.sparse else x,
            edge_attr=attr if self.kind.edge_features else None,
        )

    def rows_of(self, rows: list[list[float]]) -> Tensor:
        x = torch.tensor(rows)
        return x.relu() if self.kind.sparse else x

    def labels_of(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows) if self.kind.multilabel else torch.tensor(rows)[:, 0]

    def step(self) -> tuple[str, Change]:
        """Change the state at random; return what was done, and the same as a change."""
        draw = self.random
        name = draw.choice(
            ("label", "label", "retract", "feature", "node", "edge", "edge removed", "everything")
        )
        if name == "label":
            nodes = draw.sample(range(self.num_nodes), min(self.num_nodes, draw.randint(1, 3)))
            return name, self.relabel(nodes)
        if name == "retract":
            nodes = draw.sample(range(self.num_nodes), 1)
            for node in nodes:
                self.labels[node] = [-1] * len(self.labels[node])
            return name, Change.hide(nodes)
        if name == "feature":
            node, row = draw.randrange(self.num_nodes), self.row(FEATURES)
            self.x[node] = row
            return name, Change(featured=torch.tensor([node]), x=self.rows_of([row]))
        if name == "node":
            return name, self.add_nodes(draw.randint(1, 2))
        if name == "edge":
            return name, self.add_edges(draw.randint(1, 3))
        if name == "edge removed":
            return name, Change.remove_edges(self.remove_edges(draw.randint(1, 3)))
        # One change with everything: removed edges, a new node with a label and edges.
        pairs = self.remove_edges(2)
        added = self.add_nodes(1)
        labels, edges = self.relabel([self.num_nodes - 1, 0]), self.add_edges(3)
        return name, Change(
            labels.nodes,
            labels.labels,
            torch.tensor(pairs).reshape(-1, 2).t(),
            added.new_nodes,
            added.featured,
            added.x,
            edges.edges,
            edges.edge_attr,
        )

    def relabel(self, nodes: list[int]) -> Change:
        for node in nodes:
            self.labels[node] = self.label()
        return Change(torch.tensor(nodes), self.labels_of([self.labels[node] for node in nodes]))

    def add_nodes(self, count: int) -> Change:
        rows = [self.row(FEATURES) for _ in range(count)]
        change = Change.add_nodes(self.num_nodes, self.rows_of(rows))
        self.x += rows
        self.labels += [[-1] * len(self.labels[0]) for _ in rows]
        return change

    def add_edges(self, count: int) -> Change:
        nodes = range(self.num_nodes)
        pairs = {(self.random.choice(nodes), self.random.choice(nodes)) for _ in range(count)}
        if self.edges and self.random.random() < 0.3:
            pairs.add(self.random.choice(self.edges)[:2])  # it exists and is replaced
        rows = [self.row(EDGE_FEATURES) for _ in pairs]
        self.edges = [edge for edge in self.edges if edge[:2] not in pairs]
        self.edges += [(*pair, row) for pair, row in zip(pairs, rows, strict=True)]
        return Change.add_edges(list(pairs), torch.tensor(rows))

    def remove_edges(self, count: int) -> list[tuple[int, int]]:
        chosen = self.random.sample(self.edges, min(len(self.edges), count))
        pairs = [edge[:2] for edge in chosen if edge[0] != edge[1]]
        if self.random.random() < 0.2 and self.num_nodes > 1:
            pairs.append((0, 1))  # it may not exist
        self.edges = [edge for edge in self.edges if edge[:2] not in pairs]
        return pairs


@dataclass(frozen=True)
class Subject:
    """An engine that follows changes, and the same answers computed cold."""

    engine: ChangeableLogits
    cold: Callable[[Graph, Tensor], Tensor]


def subject_of(world: World) -> Subject:
    """Build the models of a kind with random weights, and the engine under test."""
    kind, draw = world.kind, world.random
    graph = with_structure(world.graph) if kind.structure else world.graph
    sizes = Sizes(
        graph.num_features, graph.num_edge_features, CLASSES, kind.multilabel, kind.sparse
    )
    with torch.random.fork_rng():
        torch.manual_seed(world.seed)
        models = [make(sizes).eval() for make in kind.models]
    chunk_edges = draw.choice((7, 60, 1_000_000))
    hold = draw.choice((True, False, None))

    def cold_of(model: NodeModel) -> Callable[[Graph, Tensor], Tensor]:
        def cold(graph: Graph, observed: Tensor) -> Tensor:
            graph = with_structure(graph) if kind.structure else graph
            return predict_logits(model, model.prepare(graph), observed)

        return cold

    def engine_of(model: NodeModel) -> ChangeableLogits:
        if not model.by_layer:
            return FullRecomputation(cold_of(model), world.graph, world.observed, CLASSES)
        return IncrementalLogits(
            model,
            model.prepare(graph),
            world.observed,
            structure=kind.structure,
            hold_projections=hold,
            chunk_edges=chunk_edges,
        )

    if len(models) == 1:
        return Subject(engine_of(models[0]), cold_of(models[0]))
    width = CLASSES if kind.multilabel else 1
    ensemble = Ensemble(
        models,
        [Entry(str(k), {}, 1 / len(models), 1.0 + k) for k in range(len(models))],
        [Calibration(torch.ones(width).double(), torch.zeros(width).double()) for _ in models],
    )

    def combined(graph: Graph, observed: Tensor) -> Tensor:
        outputs = [cold_of(model)(graph, observed) for model in models]
        return ensemble.combine(outputs, multilabel=kind.multilabel)

    members = [engine_of(model) for model in models]
    return Subject(EnsembleLogits(ensemble, members, multilabel=kind.multilabel), combined)


@dataclass
class Outcome:
    """The largest difference of a sequence, and what was compared."""

    difference: float = 0.0
    rows: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    def compare(self, found: Tensor, expected: Tensor) -> None:
        if found.shape != expected.shape or not bool(found.isfinite().all()):
            self.difference = float("inf")
        elif found.numel():
            self.difference = max(self.difference, float((found - expected).abs().max()))
        self.rows += len(found)


def followed(name: str, seed: int, *, steps: int) -> Outcome:
    """Follow one random sequence of changes, and compare with cold predictions."""
    world, outcome = World(KINDS[name], seed), Outcome()
    subject, draw = subject_of(world), world.random
    engine, pending = subject.engine, list[Change]()
    published = engine.logits
    outcome.compare(published, subject.cold(world.graph, world.observed))
    for step in range(steps):
        what, change = world.step()
        outcome.steps[what] += 1
        pending.append(change)
        asked = draw.random()
        if asked < 0.4 and step < steps - 1:
            count = draw.randint(1, world.num_nodes)
            targets = torch.tensor(draw.sample(range(world.num_nodes), count))
            (pulled,) = engine.after([Change.joined(pending)], [targets])
            expected = subject.cold(world.graph, world.observed)
            outcome.compare(pulled, expected[targets])
        elif asked < 0.7 or step == steps - 1:
            together = [Change.joined(pending)] if draw.random() < 0.5 else pending
            for one in together:
                update = engine.commit(one)
                more = published.new_full((one.new_nodes, published.shape[1]), torch.nan)
                published = torch.cat((published, more))
                published[update.nodes] = update.after
            pending = []
            expected = subject.cold(world.graph, world.observed)
            outcome.compare(engine.logits, expected)
            outcome.compare(published, expected)
    outcome.compare(
        engine.without_labels, subject.cold(world.graph, torch.full_like(world.observed, -1))
    )
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="Changes per sequence.")
    parser.add_argument("--minutes", type=float, default=1e9, help="Start none after this time.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began, names, origin = time.monotonic(), list(KINDS), code_origin()
    worst: dict[str, float] = dict.fromkeys(names, 0.0)
    counts: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    failures: list[str] = []
    rows = 0
    for seed in range(arguments.sequences):
        if time.monotonic() - began > 60 * arguments.minutes:
            break
        name = names[seed % len(names)]
        try:
            outcome = followed(name, seed, steps=arguments.steps)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            outcome = Outcome(difference=float("inf"))
        counts[name] += 1
        steps += outcome.steps
        rows += outcome.rows
        worst[name] = max(worst[name], outcome.difference)
        if not outcome.difference <= LIMIT:
            failures.append(f"{name}, seed {seed}: a difference of {outcome.difference:.3g}")
            print(failures[-1], flush=True)
    sequences = counts.total()
    result = {
        "command": f"python proofs/incremental.py --sequences {sequences}",
        "code": origin,
        "torch": torch.__version__,
        "what": "logits that follow changes, compared with cold predictions",
        "limit": LIMIT,
        "sequences": sequences,
        "equal": sequences - len(failures),
        "steps_per_sequence": arguments.steps,
        "compared_rows": rows,
        "steps": dict(sorted(steps.items())),
        "largest_difference": max(worst.values()),
        "by_model": {n: {"sequences": counts[n], "largest_difference": worst[n]} for n in names},
        "failures": failures,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
    print(f"{sequences} sequences, {len(failures)} failed, {max(worst.values()):.2g} at most")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
