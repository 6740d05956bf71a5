"""Tables 4 to 8: results, inputs and layer."""

from __future__ import annotations

from collections.abc import Sequence

from unimp.config.task_names import SYNTHETIC
from unimp.model.node_model import count_parameters
from unimp.model.registry import build_model
from unimp.studies import paper
from unimp.studies.cells import Cell, Subject, kind_of_residual
from unimp.studies.paper import Number
from unimp.studies.study import (
    BySeed,
    Claim,
    Column,
    Findings,
    Outcome,
    Outcomes,
    Row,
    Study,
    Table,
    comparison,
)

VAL, TEST = Column("val", "validation"), Column("test", "test")
PARAMETERS = Column("parameters", "parameters", "count")
GRAPH_INPUTS = ("X,A", "A,Y", "X,A,Y")
GRAPH_MODELS = (("gcn", "GCN"), ("gat", "GAT"), ("unimp", "Graph Transformer"))


def full_model(subject: Subject) -> Cell:
    """UniMP with all inputs of the task: features, labels and edge features."""
    return subject.cell(edge_features=subject.has_edge_features)


def own_scores(outcome: Outcome, protocol: str = "train") -> dict[str, BySeed]:
    return {part: outcome.scores(part, protocol) for part in ("val", "test")}


def paper_scores(**numbers: Number | None) -> dict[str, Number]:
    return {key: number for key, number in numbers.items() if number is not None}


def slips(subject: Subject, study: str) -> tuple[str, ...]:
    """Known mistakes in the paper's numbers, and whether the task is synthetic."""
    notes = paper.SLIPS.get(study, ()) + paper.SLIPS_OF_DATA.get(subject.data_set or "", ())
    name = subject.recipe.task.name
    if name in SYNTHETIC:
        notes += (
            f"{name} is drawn at random with the sizes of ogbn-{SYNTHETIC[name]}: its scores show "
            "that the command works and cannot be compared with the paper's. For OGB's data, use "
            f"--task ogbn-{SYNTHETIC[name]}.",
        )
    return notes


# Tables 4 to 6


def results_cells(subject: Subject) -> Sequence[Cell]:
    return [full_model(subject)]


def conclude_results(subject: Subject, outcomes: Outcomes) -> Findings:
    cell = full_model(subject)
    outcome = outcomes[cell.name]
    counts = {seed: float(m["parameters"]) for seed, m in outcome.metrics.items()}
    published = [] if subject.data_set is None else paper.published(subject.data_set)
    numbers = [paper_scores(val=p.val, test=p.test, parameters=p.parameters) for p in published]
    rows = [
        Row((f"{other.model} (paper)", "none"), paper=those)
        for other, those in zip(published[:-1], numbers[:-1], strict=True)
    ]
    rows.append(
        Row(
            ("UniMP", "train"),
            {**own_scores(outcome), "parameters": counts},
            numbers[-1] if numbers else {},
            outcome.remark,
        )
    )
    with_val = "… + validation labels at inference"
    more = paper.layer_row(subject.data_set, with_val) if subject.data_set else None
    rows.append(
        Row(
            ("UniMP + validation labels at inference", "train+val"),
            {"test": outcome.scores("test", "train+val"), "parameters": counts},
            paper_scores(test=more),
            outcome.remark,
        )
    )
    model = build_model(cell.recipe.model, subject.sizes)
    norm = getattr(model, "input_norm", None)
    count = count_parameters(model)
    note = (
        f"UniMP has {count:,} parameters"
        + (f", {count - count_parameters(norm):,} without the input norm" if norm else "")
        + "."
    )
    head = ("model", "labels as inputs when scoring")
    return Findings(
        tables=(Table(head, (PARAMETERS, VAL, TEST), tuple(rows)),),
        claims=_beats_all(published, outcome),
        notes=(note, *slips(subject, "results")),
    )


def _beats_all(published: Sequence[paper.Published], outcome: Outcome) -> tuple[Claim, ...]:
    if not published:
        return ()
    best = max(published[:-1], key=lambda other: other.test.value)
    test = outcome.scores("test")
    level = dict.fromkeys(test, best.test.value)
    return (
        comparison(
            "our unified model outperform all other comparative models in three OGBN datasets",
            "section 4.2",
            [(f"test vs. {best.model}, the best of them:", test, level)],
        ),
    )


# Table 7


def input_cells(subject: Subject) -> Sequence[Cell]:
    return [cell for _, _, cell in _input_rows(subject)]


def _input_rows(subject: Subject) -> list[tuple[str, str, Cell]]:
    rows = [("X", "MLP", subject.cell("mlp"))]
    rows += [
        (inputs, title, subject.cell(model, inputs))
        for inputs in GRAPH_INPUTS
        for model, title in GRAPH_MODELS
    ]
    if subject.has_edge_features:
        title = "Graph Transformer + edge features"
        rows.append((subject.inputs, title, full_model(subject)))
    return rows


def conclude_inputs(subject: Subject, outcomes: Outcomes) -> Findings:
    rows, test = [], dict[tuple[str, str], BySeed]()
    for inputs, title, cell in _input_rows(subject):
        outcome = outcomes[cell.name]
        data_set = subject.compared(inputs)
        number = paper.with_inputs(data_set, inputs, title) if data_set else None
        rows.append(
            Row((inputs, title), own_scores(outcome), paper_scores(test=number), outcome.remark)
        )
        test[inputs, title] = outcome.scores("test")
    titles = [title for _, title in GRAPH_MODELS]
    place = "section 4.3, Table 7"
    claims = (
        comparison(
            "only with Ŷ and A as input, GNNs still work well in all three datasets, "
            "outperforming those MLP model only given X",
            place,
            [(f"{t} vs. MLP", test["A,Y", t], test["X", "MLP"]) for t in titles],
        ),
        comparison(
            "models with X, A and Ŷ outperform the models with X and A",
            place,
            [(t, test["X,A,Y", t], test["X,A", t]) for t in titles],
        ),
        comparison(
            "our Graph Transformer can outperform GAT, GCN with different input settings",
            place,
            [
                (f"{i} vs. {t}", test[i, "Graph Transformer"], test[i, t])
                for i in GRAPH_INPUTS
                for t in ("GAT", "GCN")
            ],
        ),
    )
    return Findings(
        tables=(Table(("inputs", "model"), (VAL, TEST), tuple(rows)),),
        claims=claims,
        notes=(*_without_edge_features(subject), *slips(subject, "inputs")),
    )


def _without_edge_features(subject: Subject) -> tuple[str, ...]:
    if not subject.has_edge_features:
        return ()
    return (
        "Edge features are left out unless a row states otherwise, because GCN and GAT do not take "
        "them.",
    )


# Table 8


def layer_cells(subject: Subject) -> Sequence[Cell]:
    return list({cell.name: cell for _, cell, _ in _layer_rows(subject)}.values())


def _layer_rows(subject: Subject) -> list[tuple[str, Cell, str]]:
    """Each row of Table 8, its cell, and the protocol of its score."""
    bare = "X,A" if subject.sizes.features else subject.inputs
    labels = subject.inputs
    kinds = ("none", "simple", "gated")
    cells = [subject.cell("gat", bare, residual=kind) for kind in kinds]
    cells += [subject.cell("unimp", bare, residual=kind) for kind in kinds]
    cells += [subject.cell("unimp", labels, residual="gated")] * 2
    protocols = ["train"] * 7 + ["train+val"]
    return list(zip(paper.LAYER, cells, protocols, strict=True))


def conclude_layer(subject: Subject, outcomes: Outcomes) -> Findings:
    rows, test = [], dict[str, BySeed]()
    for title, cell, protocol in _layer_rows(subject):
        outcome = outcomes[cell.name]
        number = paper.layer_row(subject.data_set, title) if subject.data_set else None
        words = (title, cell.recipe.model.inputs)
        scores = own_scores(outcome, protocol)
        rows.append(Row(words, scores, paper_scores(test=number), outcome.remark))
        test[title] = scores["test"]
    gat, gat_simple, gat_gated, dot, dot_simple, dot_gated, unimp, more = test

    def compared(*pairs: tuple[str, str]) -> list[tuple[str, BySeed, BySeed]]:
        return [(f"{second} vs. {first}", test[second], test[first]) for first, second in pairs]

    place = "section 4.3, Table 8"
    claims = [
        comparison(
            "dot-product attention can outperform sum attention",
            place,
            compared((gat, dot), (gat_simple, dot_simple), (gat_gated, dot_gated)),
        ),
        comparison(
            "residual and gated residual can also strengthen the GNNs with shallow layers",
            place,
            compared(
                (gat, gat_simple),
                (gat_simple, gat_gated),
                (dot, dot_simple),
                (dot_simple, dot_gated),
            ),
        ),
        comparison(
            "our unified model can take the additional validation labels as input to further boost "
            "model's performance without more training steps",
            place,
            [("validation labels", test[more], test[unimp])],
        ),
    ]
    notes: list[str] = []
    if subject.sizes.features:
        claims.append(
            comparison(
                "with train labels as inputs (Table 8, UniMP over the transformer with gated "
                "residual)",
                place,
                [("train labels", test[unimp], test[dot_gated])],
            )
        )
    else:
        notes.append("The task has no node features: every row has labels as inputs.")
    own, gate = kind_of_residual(subject.recipe), subject.recipe.model.gate
    if own != "gated":
        notes.append(f"The residual of the recipe is {own}, not gated.")
    if not subject.recipe.task.self_loops:
        notes.append(
            "GAT always has self-loops. The recipe adds none, so that a transformer without a "
            "residual receives only the neighbors of a node, not the node itself."
        )
    notes.append(f"Gated residual: model.gate = {'all' if gate == 'none' else gate}.")
    return Findings(
        tables=(Table(("model", "inputs"), (VAL, TEST), tuple(rows)),),
        claims=tuple(claims),
        notes=(*notes, *_without_edge_features(subject), *slips(subject, "layer")),
    )


RESULTS = Study(
    "results",
    "UniMP compared with the models of its time",
    "Tables 4 to 6",
    results_cells,
    conclude_results,
    also=("table-4", "table-5", "table-6"),
)
INPUTS = Study(
    "inputs",
    "features, edges and labels as inputs of four models",
    "Table 7",
    input_cells,
    conclude_inputs,
    also=("table-7",),
)
LAYER = Study(
    "layer",
    "the parts of UniMP's layer, compared with GAT",
    "Table 8",
    layer_cells,
    conclude_layer,
    also=("table-8",),
)
