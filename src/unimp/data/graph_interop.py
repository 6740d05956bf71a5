"""Graphs of other libraries and back: PyG, NetworkX, adjacency matrices of SciPy and NumPy.

Edges point from the source of a message to its target, as in PyG: `edge_index[0]` → `[1]`, u → v
of a NetworkX edge, row → column of an adjacency matrix. `unimp.data.interop` brings labels too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.errors import GraphError, nearest_names
from unimp.graph.features import SparseFeatures, as_tensor
from unimp.graph.graph import Graph


def graph_from_pyg(data: Any) -> Graph:
    """The graph of a `torch_geometric.data.Data`: x, edge_index, and edge_attr or edge_weight.

    A batch of several graphs is one graph of parts. Other attributes are left out.
    """
    told = stored(data)
    if told.get("edge_index") is None:
        what = "adj_t in place of edge_index" if "adj_t" in told else "no edge_index"
        raise GraphError(
            f"this {type(data).__name__} has {what}; give a torch_geometric Data with edge_index "
            "of shape (2, E), without the transform ToSparseTensor"
        )
    x, y, num_nodes = told.get("x"), told.get("y"), told.get("num_nodes")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = _sparse_features(x)
    if x is None and num_nodes is None and isinstance(y, Tensor) and y.ndim:
        num_nodes = len(y)  # the largest number among the edges would leave out nodes without any
    edge_attr = told.get("edge_attr")
    return Graph.from_edges(
        told["edge_index"],
        num_nodes=num_nodes,
        x=x,
        edge_attr=told.get("edge_weight") if edge_attr is None else edge_attr,
    )


def stored(data: Any) -> dict[str, Any]:
    """What a PyG object holds, by name; several types of nodes or edges are refused."""
    if hasattr(data, "node_types"):
        raise GraphError(
            "this is a graph of several types of nodes or edges; make it one of a single type with "
            "data.to_homogeneous(), with its types among the features where they matter"
        )
    if not hasattr(data, "to_dict") or not hasattr(data, "edge_index"):
        raise GraphError(f"a {type(data).__name__} is no torch_geometric Data")
    return dict(data.to_dict())


def graph_to_pyg(graph: Graph) -> Any:
    """A `torch_geometric.data.Data` of the same graph; sparse features as a sparse COO tensor."""
    graph = graph.to("cpu")
    x = graph.x
    if isinstance(x, SparseFeatures):
        rows = torch.repeat_interleave(torch.arange(x.shape[0]), (x.indptr[1:] - x.indptr[:-1]))
        x = torch.sparse_coo_tensor(
            torch.stack((rows, x.column.long())), x.value, x.shape, check_invariants=True
        ).coalesce()
    return _optional("torch_geometric.data", "pyg").Data(
        x=x,
        edge_index=graph.edge_index.long(),
        edge_attr=graph.edge_attr_of(None),
        num_nodes=graph.num_nodes,
    )


def graph_from_networkx(
    network: Any, *, features: str | Sequence[str] = (), edge_features: str | Sequence[str] = ()
) -> Graph:
    """The graph of a NetworkX graph; node i is list(network)[i].

    `features` and `edge_features` name attributes, each a number or a vector of the same length on
    every node or edge; side by side they are x and edge_attr. An undirected edge goes both ways.
    """
    if not hasattr(network, "is_directed") or not hasattr(network, "edges"):
        raise GraphError(f"a {type(network).__name__} is no networkx graph")
    keys = list(network)
    place = {key: number for number, key in enumerate(keys)}
    edges = list(network.edges(data=True))
    ends = np.array([(place[u], place[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2).T
    nodes = [network.nodes[key] for key in keys]
    x = _matrix(nodes, _names(features), lambda row: f"node {keys[row]!r}")
    told = [attributes for _, _, attributes in edges]
    attr = _matrix(told, _names(edge_features), _edge_name(edges))
    if not network.is_directed():
        other = np.flatnonzero(ends[0] != ends[1])  # a self-loop is its own reverse
        ends = np.concatenate((ends, ends[::-1, other]), axis=1)
        attr = None if attr is None else np.concatenate((attr, attr[other]))
    return Graph.from_edges(ends, num_nodes=len(keys), x=x, edge_attr=attr)


def graph_to_networkx(graph: Graph, *, names: Sequence[Hashable] | None = None) -> Any:
    """A directed NetworkX graph, with features as vectors `x` of nodes and `edge_attr` of edges.

    Nodes are called by their numbers, or by `names`. Where an edge stands twice it is a multigraph.
    """
    networkx = _optional("networkx", "networkx")
    keys = list(range(graph.num_nodes)) if names is None else list(names)
    if len(set(keys)) != graph.num_nodes:
        raise GraphError(
            f"{len(set(keys))} different names for {graph.num_nodes} nodes; each needs its own"
        )
    graph = graph.to("cpu")
    several = graph.deduplicate("first").num_edges < graph.num_edges
    network = networkx.MultiDiGraph() if several else networkx.DiGraph()
    network.add_nodes_from(keys)
    if graph.x is not None:
        rows = graph.nodes.features
        dense = rows.toarray() if isinstance(graph.x, SparseFeatures) else rows
        networkx.set_node_attributes(network, dict(zip(keys, dense.tolist(), strict=True)), "x")
    attr = graph.edge_attr_of(None)
    values = None if attr is None else attr.tolist()
    for slot, (source, target) in enumerate(graph.edge_index.T.tolist()):
        told = {} if values is None else {"edge_attr": values[slot]}
        network.add_edge(keys[source], keys[target], **told)
    return network


def graph_from_adjacency(matrix: Any, *, x: Any = None, weighted: bool = False) -> Graph:
    """The graph whose edges are the entries of a square matrix: row → column.

    Of a scipy.sparse matrix each stored entry is an edge, of a dense array each that is not zero.
    With `weighted` the entries become edge features, one column.
    """
    if not hasattr(matrix, "tocoo"):
        matrix = as_tensor(matrix, "an adjacency matrix").numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        hint = "; edges as a list go to Graph.from_edges" if 2 in matrix.shape else ""
        raise GraphError(
            f"an adjacency matrix has a row and a column for each node; got shape "
            f"{tuple(matrix.shape)}{hint}"
        )
    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        source, target, value = entries.row, entries.col, entries.data
    else:
        source, target = np.nonzero(matrix)
        value = matrix[source, target]
    return Graph.from_edges(
        np.stack((source, target)).astype(np.int64),
        num_nodes=int(matrix.shape[0]),
        x=x,
        edge_attr=value if weighted else None,
    )


def graph_to_adjacency(graph: Graph, *, weighted: bool = False) -> Any:
    """A scipy.sparse.csr_array with an entry for each edge, at its source's row: 1, or its weight.

    `weighted` takes the one column of edge features. No edge may stand twice: see `deduplicate`.
    """
    from scipy.sparse import coo_array

    graph = graph.to("cpu")
    attr = graph.edge_attr_of(None)
    if weighted and (attr is None or attr.shape[1] != 1):
        raise GraphError(
            f"the graph has {graph.num_edge_features} edge features; weights are exactly one"
        )
    if graph.deduplicate("first").num_edges < graph.num_edges:
        raise GraphError("an edge stands twice; merge them first with graph.deduplicate()")
    value = attr[:, 0] if weighted and attr is not None else torch.ones(graph.num_edges)
    ends = (graph.source.numpy(), graph.target.numpy())
    return coo_array((value.numpy(), ends), shape=2 * (graph.num_nodes,)).tocsr()


def _sparse_features(x: Tensor) -> SparseFeatures:
    from scipy.sparse import coo_array

    entries = x.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
    row, column = entries.indices().numpy()
    shape = (int(x.shape[0]), int(x.shape[1]))
    return SparseFeatures.from_scipy(coo_array((entries.values().numpy(), (row, column)), shape))


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _edge_name(edges: Sequence[tuple[Any, Any, Any]]) -> Callable[[int], str]:
    return lambda row: f"edge {edges[row][0]!r} → {edges[row][1]!r}"


def _matrix(
    attributes: Sequence[Mapping[str, Any]], names: Sequence[str], who: Callable[[int], str]
) -> NDArray[np.float64] | None:
    """The named attributes side by side, one row each; None where none is named."""
    if not names:
        return None
    columns = []
    for name in names:
        rows: list[NDArray[Any]] = []
        for row, told in enumerate(attributes):
            value = told.get(name)
            if value is None:
                missing = sum(told.get(name) is None for told in attributes)
                have = f"; {nearest_names(name, told)}" if told else ""
                raise GraphError(
                    f"{who(row)} has no attribute {name!r} ({missing} such in all){have}; give it "
                    "a value everywhere"
                )
            array = np.asarray(value)
            if array.dtype.kind not in "fiub" or array.ndim > 1:
                raise GraphError(
                    f"attribute {name!r} of {who(row)} is {value!r}; it must be a number or a list "
                    "of numbers. Encode text and categories as numbers first"
                )
            rows.append(array.reshape(-1))
            if len(rows[-1]) != len(rows[0]):
                raise GraphError(
                    f"attribute {name!r} of {who(row)} has {len(rows[-1])} numbers, that of "
                    f"{who(0)} {len(rows[0])}; they must be as many everywhere"
                )
        columns.append(np.stack(rows) if rows else np.empty((0, 1)))
    return np.concatenate(columns, axis=1)


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphError(
            f"this needs the package {module.partition('.')[0]}; install it with "
            f'pip install "unimp[{extra}]"'
        ) from error
