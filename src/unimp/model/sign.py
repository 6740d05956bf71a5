"""An MLP on the features of all hops: features are propagated once, not in every step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.errors import ModelError
from unimp.graph.features import Features, SparseFeatures, split_features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gcn import convolve, with_convolution_weights
from unimp.model.layers import project
from unimp.model.propagated_labels import LabelSums, PropagatedLabels
from unimp.model.singular_vectors import singular_vectors
from unimp.model.solved_model import KnownLabels, Solved, SolvedModel, cross_fitted
from unimp.ops.dropout import dropout
from unimp.ops.products import Linear
from unimp.tasks.labels import UNLABELED, reveal_only
from unimp.tasks.metrics import score
from unimp.tasks.task import Sizes

HOPS = 3
MOST_COLUMNS = 256
"""Wider features are projected to this number of columns while the model is trained."""
LEAST_BATCH, MOST_STEPS = 512, 40
"""The smallest number of train nodes per step, and the largest number of steps per epoch. A large
train set therefore has larger batches."""
MOST_SAMPLED = 20_000
"""The most nodes whose features the singular vectors are computed from."""
RATE = 0.003
MOST_EPOCHS, FEWEST_EPOCHS, EPOCHS_WITHOUT_VALIDATION = 300, 20, 40
LEAST_STEPS = 200
"""Without validation, a small train set is trained for more epochs, to take this many steps."""
PATIENCE = {"accuracy": 20, "rocauc": 100}
"""Training ends after this many epochs with lower validation scores than before."""
WORK = 1.2e9
"""The largest epochs × train nodes × columns. It limits the number of epochs, but never below
FEWEST_EPOCHS."""


class SIGN(SolvedModel):
    """An MLP whose inputs are the features of a node after 0 … K steps of propagation.

        Â = D^-½ (A + I) D^-½
        h = [L V | X W_0 | Â X W_1 | … | Âᴷ X W_K] + b
        logits = W″ f( W′ f(h) + b′ ) + b″                    f(h) = dropout( ReLU( norm(h) ) )

    L are propagated labels (see `PropagatedLabels`), if labels are inputs. The model is SIGN
    (Frasca et al., 2020), with labels. Features are propagated before any weights are applied, so
    Âᵏ X is computed once. An epoch reads only the rows of train and validation nodes, so it is much
    faster than an epoch of a graph neural network.

    Training minimizes the cross-entropy of train labels with Adam, in batches. During training, the
    row of L of a train node comes from the labels of other folds, so it does not contain the node's
    own label. Each of the matrices Âᵏ X and L is centered and divided by one number. Features with
    more than MOST_COLUMNS columns are first projected onto their largest singular vectors. Scaling
    and projection are linear, so after training they are merged into W, V and b. The weights of the
    epoch with the best validation score are kept.

    Prediction multiplies X by the weights first, so it propagates at most K·width columns for any
    number of features. Between hops, a row is [L V | X W_0 | … | X W_K]. Hop k = 1 … K propagates
    the columns of W_k … W_K.
    """

    takes_edge_features = False
    weighs_by_degree = adds_self_loops = True
    varies = True
    epochs: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        hops: int = HOPS,
        width: int = 64,
        dropout: float = 0.5,
        use_labels: bool = True,
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("sign needs node features, but the task has none")
        self.num_layers, self.width = hops, width
        self.weight = nn.Parameter(torch.empty(sizes.features, hops + 1, width))
        bound = sizes.features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        self.takes_labels = self.takes_propagated_labels = use_labels
        self.propagated_labels = PropagatedLabels(sizes, width) if use_labels else None
        inputs = (hops + 1 + use_labels) * width
        self.bias = nn.Parameter(torch.zeros(inputs))
        self.perceptron = Perceptron(inputs, width, sizes.classes, dropout)
        # A buffer, because it is a result that is stored with the weights.
        self.register_buffer("epochs", torch.tensor(EPOCHS_WITHOUT_VALIDATION))

    def prepare(self, graph: Graph) -> Graph:
        return with_convolution_weights(graph)

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        assert self.propagated_labels is not None
        return self.propagated_labels.of(graph, observed, recent)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        x, propagated = split_features(x)
        assert x is not None
        rows = project(x, self.weight.flatten(1).t())
        if self.propagated_labels is None:
            return rows
        assert propagated is not None
        return torch.cat((self.propagated_labels(propagated), rows), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        first = -(self.num_layers - index) * self.width  # the first column that is propagated
        return torch.cat(
            (h[: hop.num_targets, :first], convolve(h[:, first:].contiguous(), hop)), 1
        )

    def read_out(self, h: Tensor) -> Tensor:
        return self.perceptron(h + self.bias)  # type: ignore[no-any-return]

    def solve(
        self, graph: Graph, known: KnownLabels, *, seed: int, seconds: float = math.inf
    ) -> Solved:
        until = time.perf_counter() + seconds
        count, has_val = len(known.train), known.val.numel() > 0
        limit = max(EPOCHS_WITHOUT_VALIDATION, math.ceil(LEAST_STEPS / steps_of(count)))
        if has_val:
            limit = self._most_epochs(count + len(known.val) // 3)  # scoring has no backward pass
        epochs, cut_short = self._train(graph, known, seed, limit, until)
        self.epochs.fill_(epochs)
        how = "chosen by the validation score" if has_val else "fixed without validation"
        ended = "cut short by the time limit; " if cut_short else ""
        return Solved(f"{ended}weights of epoch {epochs}, {how}", cut_short)

    def solve_again(self, graph: Graph, known: KnownLabels, *, seed: int) -> None:
        self._train(graph, known, seed, int(self.epochs), math.inf)

    def _most_epochs(self, rows: int) -> int:
        columns = (self.num_layers + 1) * min(len(self.weight), MOST_COLUMNS)
        if self.propagated_labels is not None:
            columns += self.propagated_labels.linear.in_features
        return min(MOST_EPOCHS, max(FEWEST_EPOCHS, int(WORK / (columns * max(1, rows)))))

    def _train(
        self, graph: Graph, known: KnownLabels, seed: int, limit: int, until: float
    ) -> tuple[int, bool]:
        """Train a new network, and copy its weights. Return what `fit` returns."""
        device = self.weight.device  # a large graph may be in main memory
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(seed)
            began = time.perf_counter()
            blocks = self._blocks(graph, known, seed)
            # Without time to train, the time of the propagation would be wasted.
            now = time.perf_counter()
            until = max(until, now + (now - began))
            self.perceptron.reset_parameters()
            columns = [block.rows.shape[1] for block in blocks]
            network = Network(columns, self.width, self.perceptron).to(device)
            result = fit(network, [block.rows for block in blocks], known, limit, until)
        self._take(blocks, network.first)
        return result

    @torch.no_grad()
    def _blocks(self, graph: Graph, known: KnownLabels, seed: int) -> list[Block]:
        """The inputs of the train nodes, then those of the validation nodes, scaled."""
        x, device = graph.x, self.weight.device
        nodes = torch.cat((known.train, known.val)).to(graph.device)
        assert x is not None
        x = x if isinstance(x, SparseFeatures) else x.float()
        vectors = None
        if x.shape[1] > MOST_COLUMNS:
            generator = torch.Generator().manual_seed(seed)
            sample = torch.randperm(x.shape[0], generator=generator)[:MOST_SAMPLED]
            vectors = singular_vectors(x[sample.to(graph.device)], MOST_COLUMNS, seed)
            x = project(x, vectors.t().to(graph.device))
            vectors = vectors.to(device)
        elif isinstance(x, SparseFeatures):
            x = x.to_dense()
        blocks, rows = [], x
        for step in range(self.num_layers + 1):
            rows = convolve(rows, graph.hop) if step else rows
            blocks.append(Block(rows.index_select(0, nodes).to(device), vectors))
        if self.propagated_labels is not None:
            inside = cross_fitted(known, partial(self.propagated, graph), seed=seed)
            observed = reveal_only(known.train, known.labels)
            outside = self.propagated(graph, observed)[nodes[len(known.train) :]]
            labels = self.propagated_labels.inputs(torch.cat((inside, outside)))
            blocks.insert(0, Block(labels.to(device)))
        return blocks

    @torch.no_grad()
    def _take(self, blocks: Sequence[Block], first: nn.ModuleList) -> None:
        """Copy the trained first layers, converted to inputs that are not projected or scaled."""
        folded = [block.folded(layer) for block, layer in zip(blocks, first, strict=True)]
        self.bias.copy_(torch.cat([bias for _, bias in folded]))
        if self.propagated_labels is not None:
            self.propagated_labels.linear.weight.copy_(folded.pop(0)[0].t())
            self.propagated_labels.linear.bias.zero_()
        self.weight.copy_(torch.stack([weight for weight, _ in folded], 1))


class Perceptron(nn.Module):
    """The layers after the first one: logits = W″ f( W′ f(h) + b′ ) + b″."""

    def __init__(self, inputs: int, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm, self.hidden = nn.LayerNorm(inputs), Linear(inputs, width)
        self.hidden_norm, self.head = nn.LayerNorm(width), Linear(width, classes)

    def reset_parameters(self) -> None:
        for layer in (self.norm, self.hidden, self.hidden_norm, self.head):
            layer.reset_parameters()

    def forward(self, h: Tensor) -> Tensor:
        h = dropout(F.relu(self.norm(h)), self.dropout, self.training)
        h = dropout(F.relu(self.hidden_norm(self.hidden(h))), self.dropout, self.training)
        return self.head(h)  # type: ignore[no-any-return]


class Network(nn.Module):
    """The model during training: one linear layer per block of inputs, then the perceptron."""

    def __init__(self, columns: Sequence[int], width: int, perceptron: Perceptron) -> None:
        super().__init__()
        self.first = nn.ModuleList(Linear(count, width) for count in columns)
        self.perceptron = perceptron

    def forward(self, blocks: Sequence[Tensor]) -> Tensor:
        h = [layer(rows) for layer, rows in zip(self.first, blocks, strict=True)]
        return self.perceptron(torch.cat(h, 1))  # type: ignore[no-any-return]


class Block:
    """One block of inputs z, projected by P, centered and scaled: rows = factor · (z P − mean)."""

    def __init__(self, rows: Tensor, vectors: Tensor | None = None) -> None:
        """rows: z P. vectors: P [F, columns]; None: z is not projected."""
        exact = rows.double()
        self.vectors, self.mean = vectors, exact.mean(0)
        centered = exact - self.mean
        size, largest = centered.square().mean().sqrt(), exact.abs().amax()
        # The differences of constant rows are rounding errors, which must not be enlarged.
        self.factor = 1 / size if size > 1e-6 * largest else torch.zeros_like(size)
        self.rows = (centered * self.factor).float()

    def folded(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """The weight [F, width] and the bias that give the same output for the inputs z."""
        assert isinstance(layer, nn.Linear)
        weight = layer.weight.t().double() * self.factor
        bias = layer.bias - self.mean @ weight
        if self.vectors is not None:
            weight = self.vectors.double() @ weight
        return weight.float(), bias.float()


def fit(
    network: Network, blocks: Sequence[Tensor], known: KnownLabels, limit: int, until: float
) -> tuple[int, bool]:
    """Train. Return the epoch whose weights are kept, and whether the time limit ended training.

    blocks: the inputs of the train nodes, then those of the validation nodes. Without validation
    nodes, the weights are those after the last epoch. limit: the largest number of epochs. until: a
    time of `time.perf_counter`. Training stops after the first epoch that ends later than this.
    """
    device, count = blocks[0].device, len(known.train)
    labels, val_labels = known.labels[known.train].to(device), known.labels[known.val]
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    batch = math.ceil(count / steps_of(count))
    best_score, best_epoch, best, cut_short = -math.inf, limit, None, False
    for epoch in range(1, limit + 1):
        if cut_short := epoch > 1 and time.perf_counter() >= until:
            best_epoch = epoch - 1 if best is None else best_epoch
            break
        network.train()
        for nodes in torch.split(torch.randperm(count).to(device), batch):
            optimizer.zero_grad()
            logits = network([rows.index_select(0, nodes) for rows in blocks])
            torch.autograd.backward(loss(logits, labels[nodes]))
            optimizer.step()
        if not len(val_labels):
            continue
        network.eval()
        with torch.no_grad():
            logits = network([rows[count:] for rows in blocks]).cpu()
        found = score(known.metric, logits, val_labels)
        if math.isnan(found):  # for example ROC-AUC if validation has only one class
            found = -math.inf
        if found >= best_score:
            best_score, best_epoch, best = found, epoch, copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= PATIENCE[known.metric]:
            break
    if best is not None:
        network.load_state_dict(best)
    network.eval()
    return best_epoch, cut_short


def steps_of(count: int) -> int:
    """The number of steps of an epoch of `count` train nodes."""
    return min(MOST_STEPS, math.ceil(count / LEAST_BATCH))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of labels [n], or of the known entries of binary tasks [n, T]."""
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels)
    seen = labels != UNLABELED
    return F.binary_cross_entropy_with_logits(logits[seen], labels[seen].float())
