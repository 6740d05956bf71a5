"""Tables 4 to 8: results, inputs and layer."""

from __future__ import annotations

from unimp.config.task_names import SYNTHETIC
from unimp.model.node_model import count_parameters
from unimp.model.registry import build_model
from unimp.studies import paper
from unimp.studies.cells import Cell, Subject, kind_of_residual
from unimp.studies.paper import Number
from unimp.studies.study import (
    BySeed,
    Column,
    Findings,
    Outcome,
    Outcomes,
    Row,
    Table,
    comparisons,
    study,
)

VAL, TEST = Column("val", "validation"), Column("test", "test")
PARAMETERS = Column("parameters", "parameters", "count")
GRAPH_INPUTS = ("X,A", "A,Y", "X,A,Y")
GRAPH_MODELS = (("gcn", "GCN"), ("gat", "GAT"), ("unimp", "Graph Transformer"))


def full_model(subject: Subject) -> Cell:
    """UniMP with all inputs of the task: features, labels and edge features."""
    return subject.cell(edge_features=subject.has_edge_features)


def scored_row(
    words: tuple[str, str], outcome: Outcome, number: Number | None, protocol: str = "train"
) -> Row:
    """The scores of a cell, and the test score of the paper."""
    scores = {part: outcome.scores(part, protocol) for part in ("val", "test")}
    return Row(words, scores, {"test": number} if number else {}, outcome.remark)


def slips(subject: Subject, study_name: str) -> tuple[str, ...]:
    """Known mistakes in the paper's numbers, and whether the task is synthetic."""
    notes = paper.SLIPS.get(study_name, ()) + paper.SLIPS_OF_DATA.get(subject.data_set or "", ())
    name = subject.recipe.task.name
    if name in SYNTHETIC:
        notes += (
            f"{name} is drawn at random with the sizes of ogbn-{SYNTHETIC[name]}: its scores show "
            "that the command works and cannot be compared with the paper's. For OGB's data, use "
            f"--task ogbn-{SYNTHETIC[name]}.",
        )
    return notes


@study(
    "results",
    "UniMP compared with the models of its time",
    "Tables 4 to 6",
    *("table-4", "table-5", "table-6"),
    cells=lambda subject: [full_model(subject)],
)
def results(subject: Subject, outcomes: Outcomes) -> Findings:
    (outcome,) = outcomes.values()
    counts = {seed: float(m["parameters"]) for seed, m in outcome.metrics.items()}
    more = paper.layer_row(subject.data_set, "… + validation labels at inference")
    others = paper.published(subject.data_set)
    own = others.pop("UniMP", {})
    rows = [Row((f"{model} (paper)", "none"), paper=numbers) for model, numbers in others.items()]
    test = outcome.scores("test")
    scores = {"val": outcome.scores("val"), "test": test, "parameters": counts}
    rows.append(Row(("UniMP", "train"), scores, own, outcome.remark))
    scores = {"test": outcome.scores("test", "train+val"), "parameters": counts}
    words = ("UniMP + validation labels at inference", "train+val")
    rows.append(Row(words, scores, {"test": more} if more else {}, outcome.remark))
    pairs = {}
    if others:
        best = max(others, key=lambda model: others[model]["test"].value)
        level = dict.fromkeys(test, others[best]["test"].value)
        sentence = (
            "our unified model outperform all other comparative models in three OGBN datasets"
        )
        pairs[sentence] = [(f"test vs. {best}, the best of them:", test, level)]
    model = build_model(outcome.cell.recipe.model, subject.sizes)
    norm, count = getattr(model, "input_norm", None), count_parameters(model)
    note = f"UniMP has {count:,} parameters"
    if norm:
        note += f", {count - count_parameters(norm):,} without the input norm"
    head = ("model", "labels as inputs when scoring")
    return Findings(
        tables=(Table(head, (PARAMETERS, VAL, TEST), tuple(rows)),),
        claims=comparisons("section 4.2", pairs),
        notes=(f"{note}.", *slips(subject, "results")),
    )


def input_rows(subject: Subject) -> list[tuple[str, str, Cell]]:
    """The rows of Table 7: inputs, model and cell."""
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


@study(
    "inputs",
    "features, edges and labels as inputs of four models",
    "Table 7",
    "table-7",
    cells=lambda subject: [cell for *_, cell in input_rows(subject)],
)
def inputs(subject: Subject, outcomes: Outcomes) -> Findings:
    rows = []
    for given, title, cell in input_rows(subject):
        number = paper.with_inputs(subject.compared(given), given, title)
        rows.append(scored_row((given, title), outcomes[cell.name], number))
    test = {row.words: row.ours["test"] for row in rows}
    titles = [title for _, title in GRAPH_MODELS]
    pairs = {
        "only with Ŷ and A as input, GNNs still work well in all three datasets, outperforming "
        "those MLP model only given X": [
            (f"{t} vs. MLP", test["A,Y", t], test["X", "MLP"]) for t in titles
        ],
        "models with X, A and Ŷ outperform the models with X and A": [
            (t, test["X,A,Y", t], test["X,A", t]) for t in titles
        ],
        "our Graph Transformer can outperform GAT, GCN with different input settings": [
            (f"{i} vs. {t}", test[i, "Graph Transformer"], test[i, t])
            for i in GRAPH_INPUTS
            for t in ("GAT", "GCN")
        ],
    }
    return Findings(
        tables=(Table(("inputs", "model"), (VAL, TEST), tuple(rows)),),
        claims=comparisons("section 4.3, Table 7", pairs),
        notes=(*_without_edge_features(subject), *slips(subject, "inputs")),
    )


def _without_edge_features(subject: Subject) -> tuple[str, ...]:
    if not subject.has_edge_features:
        return ()
    return (
        "Edge features are left out unless a row states otherwise, because GCN and GAT do not take "
        "them.",
    )


def layer_rows(subject: Subject) -> list[tuple[str, Cell, str]]:
    """Each row of Table 8, its cell, and the protocol of its score."""
    bare = "X,A" if subject.sizes.features else subject.inputs
    kinds = ("none", "simple", "gated")
    cells = [subject.cell(model, bare, residual=r) for model in ("gat", "unimp") for r in kinds]
    cells += [subject.cell("unimp", subject.inputs, residual="gated")] * 2
    protocols = ["train"] * 7 + ["train+val"]
    return list(zip(paper.LAYER, cells, protocols, strict=True))


@study(
    "layer",
    "the parts of UniMP's layer, compared with GAT",
    "Table 8",
    "table-8",
    cells=lambda subject: list({cell.name: cell for _, cell, _ in layer_rows(subject)}.values()),
)
def layer(subject: Subject, outcomes: Outcomes) -> Findings:
    rows = []
    for title, cell, protocol in layer_rows(subject):
        number = paper.layer_row(subject.data_set, title)
        words = (title, cell.recipe.model.inputs)
        rows.append(scored_row(words, outcomes[cell.name], number, protocol))
    test = {row.words[0]: row.ours["test"] for row in rows}
    gat, gat_simple, gat_gated, dot, dot_simple, dot_gated, unimp, more = test

    def compared(*pairs: tuple[str, str]) -> list[tuple[str, BySeed, BySeed]]:
        return [(f"{second} vs. {first}", test[second], test[first]) for first, second in pairs]

    steps = ((gat, gat_simple), (gat_simple, gat_gated), (dot, dot_simple), (dot_simple, dot_gated))
    pairs = {
        "dot-product attention can outperform sum attention": compared(
            (gat, dot), (gat_simple, dot_simple), (gat_gated, dot_gated)
        ),
        "residual and gated residual can also strengthen the GNNs with shallow layers": compared(
            *steps
        ),
        "our unified model can take the additional validation labels as input to further boost "
        "model's performance without more training steps": [
            ("validation labels", test[more], test[unimp])
        ],
    }
    notes: list[str] = []
    if subject.sizes.features:
        sentence = "with train labels as inputs (Table 8, UniMP over the transformer with gated "
        pairs[f"{sentence}residual)"] = [("train labels", test[unimp], test[dot_gated])]
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
        claims=comparisons("section 4.3, Table 8", pairs),
        notes=(*notes, *_without_edge_features(subject), *slips(subject, "layer")),
    )
