"""The queue: no node for two people, and one item in ten at random."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unimp.errors import ForbiddenError
from unimp.serving.events import Label, Skip, Undo
from unimp.serving.queue import MOST_LEASES, Item, Queue
from unimp.serving.store import Store

RANKING = [f"n{number}" for number in range(400)]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def start(folder: Path, people: int = 2, seed: int = 0) -> tuple[Store, Queue, Clock]:
    clock = Clock()
    store = Store(folder, clock=clock)
    if not store.people.all():
        for number in range(people):
            store.people.add(f"p{number}", "labeler", token=False)
        store.people.add("reader", "reader", token=False)
    return store, Queue(store, seed=seed, lease=60), clock


def take(queue: Queue, actor: str, ranking: list[str] = RANKING) -> Item:
    item = queue.next(actor, ranking).result()
    assert item is not None
    return item


def test_a_node_belongs_to_one_person_until_the_lease_expires(tmp_path: Path) -> None:
    store, queue, clock = start(tmp_path)
    with store:
        ranking = ["a", "b"]
        first, second = take(queue, "p0", ranking), take(queue, "p1", ranking)
        assert {first.node, second.node} == {"a", "b"}
        assert queue.next("p0", ranking).result() is None
        assert [item.node for item in queue.held("p0")] == [first.node]
        clock.time += 61
        assert queue.held("p0") == []
        assert take(queue, "p0", [first.node]).node == first.node  # nobody answered in time
        clock.time += 61
        assert take(queue, "p1", [first.node]).node == first.node
        assert queue.next("p0", [first.node]).result() is None
        queue.release("p1", first.node)
        assert take(queue, "p0", [first.node]).node == first.node
        with pytest.raises(ForbiddenError):
            queue.next("reader", ["c"]).result()


def test_an_answer_ends_the_lease_and_a_skipped_node_does_not_come_back(tmp_path: Path) -> None:
    store, queue, _ = start(tmp_path)
    with store:
        take(queue, "p0", ["a"])
        store.write("p0", Label(node="a", label="x"))
        assert queue.held("p0") == []
        assert queue.next("p1", ["a"]).result() is None
        take(queue, "p0", ["b"])
        skipped = store.write("p0", Skip(node="b")).version
        assert queue.next("p0", ["b"]).result() is None
        assert take(queue, "p1", ["b"]).node == "b"
        queue.release("p1", "b")
        store.write("p0", Undo(undoes=skipped))
        assert take(queue, "p0", ["b"]).node == "b"
        assert [event.drawn for event in store.reader.events()][:2] != ["", ""]


def test_one_item_in_ten_is_random_and_a_restart_continues_the_series(tmp_path: Path) -> None:
    items = []
    for _ in range(3):
        store, queue, _ = start(tmp_path, seed=3)
        with store:
            for _ in range(50):
                items.append(take(queue, "p0"))
                store.write("p0", Label(node=items[-1].node, label="x"))
            drawn = [event.drawn for event in store.reader.events()]
    assert [item.drawn for item in items] == drawn
    for block in range(15):
        assert Counter(drawn[10 * block : 10 * block + 10]) == {"random": 1, "ranked": 9}
    assert len({drawn[10 * b : 10 * b + 10].index("random") for b in range(15)}) > 3
    ranked = [int(item.node[1:]) for item in items if item.drawn == "ranked"]
    assert ranked == sorted(ranked)
    assert max(ranked) < 150
    places = [int(item.node[1:]) for item in items if item.drawn == "random"]
    assert max(places) > 250  # from the whole list
    assert len({item.node for item in items}) == len(items)


def test_the_same_seed_draws_the_same_nodes_from_the_population(tmp_path: Path) -> None:
    drawn = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        store, queue, _ = start(tmp_path / name, seed=5)
        with store:
            items = [queue.next("p0", RANKING[:60], RANKING).result() for _ in range(30)]
        drawn.append([item.node for item in items if item and item.drawn == "random"])
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3


def test_random_items_are_uniform_over_free_nodes(tmp_path: Path) -> None:
    store, _, _ = start(tmp_path)
    counts: Counter[str] = Counter()
    population = RANKING[:8]
    with store:
        store.write("p0", Label(node="n0", label="x"))
        queue = Queue(store)
        for _ in range(1400):
            item = queue.next("p0", ["r1", "r2"], population).result()
            assert item is not None
            counts[item.node] += item.drawn == "random"
            queue.release("p0", item.node)
    assert set(counts) == {"r1", *population[1:]}
    assert counts.total() == 140
    assert all(8 <= counts[node] <= 36 for node in population[1:])  # 20 each, in expectation


def test_without_a_ranking_any_free_node_is_given_but_does_not_count_as_random(
    tmp_path: Path,
) -> None:
    store, queue, _ = start(tmp_path)
    with store:
        items = [queue.next("p0", [], RANKING).result() for _ in range(10)]
        assert all(items)
        assert sum(item is not None and item.drawn == "random" for item in items) == 1
        assert queue.next("p0", []).result() is None


def test_leases_of_one_person_are_limited(tmp_path: Path) -> None:
    store, queue, clock = start(tmp_path)
    with store:
        nodes = []
        for _ in range(MOST_LEASES + 5):
            clock.time += 0.1
            nodes.append(take(queue, "p0").node)
        assert [item.node for item in queue.held("p0")] == nodes[5:]


def test_twenty_labelers_never_get_the_same_node(tmp_path: Path) -> None:
    """S8 without HTTP."""
    people, each = 20, 15
    store, queue, _ = start(tmp_path, people)

    def work(name: str) -> list[str]:
        draw, answered = random.Random(name), []
        for _ in range(each):
            item = take(queue, name)
            if draw.random() < 0.2:
                store.write(name, Skip(node=item.node))
            else:
                store.write(name, Label(node=item.node, label="x"), if_match={item.node: 0})
                answered.append(item.node)
        return answered

    with store, ThreadPoolExecutor(people) as pool:
        done = list(pool.map(work, [f"p{number}" for number in range(people)]))
        answered = Counter(node for nodes in done for node in nodes)
        assert set(answered.values()) == {1}  # with If-Match, nobody was faster either
        assert len(answered) == len(store.reader.labels())


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_requests_keeps_the_rules_of_leases(seed: int, tmp_path: Path) -> None:
    """Random requests of three people, compared with the rules in their most direct form."""
    draw = random.Random(seed)
    store, queue, clock = start(tmp_path, people=3, seed=seed)
    nodes = RANKING[:12]
    leases: dict[str, tuple[str, float]] = {}  # node → actor and end
    labeled: set[str] = set()
    skipped: set[tuple[str, str]] = set()
    drawn: list[str] = []
    with store:
        for _ in range(80):
            actor = draw.choice(["p0", "p1", "p2"])
            leases = {n: lease for n, lease in leases.items() if lease[1] > clock.time}
            mine = [node for node, (by, _) in leases.items() if by == actor]
            kind = draw.choice(["next", "next", "next", "release", "label", "skip", "undo", "wait"])
            if kind == "next":
                item = queue.next(actor, draw.sample(nodes, 5), nodes).result()
                free = {n for n in nodes if n not in labeled and n not in leases}
                free -= {node for by, node in skipped if by == actor}
                assert (item is None) == (not free)
                if item is not None:
                    assert item.node in free
                    assert item.until == clock.time + 60
                    leases[item.node] = (actor, item.until)
                    drawn.append(item.drawn)
            elif kind == "release":
                node = draw.choice(nodes)
                queue.release(actor, node)
                if leases.get(node, ("", 0.0))[0] == actor:  # only one's own lease ends
                    del leases[node]
            elif kind in ("label", "skip") and mine:
                node = draw.choice(mine)
                write = Label(node=node, label="x") if kind == "label" else Skip(node=node)
                store.write(actor, write)
                del leases[node]
                (labeled.add(node) if kind == "label" else skipped.add((actor, node)))
            elif kind == "undo" and labeled:
                node = draw.choice(sorted(labeled))
                current = store.reader.label(node)
                assert current.actor is not None
                store.write(current.actor, Undo(undoes=current.version))
                labeled.discard(node)
            elif kind == "wait":
                clock.time += draw.choice([1, 20, 61])
                leases = {n: lease for n, lease in leases.items() if lease[1] > clock.time}
            for person in ("p0", "p1", "p2"):
                held = {item.node for item in queue.held(person)}
                assert held == {node for node, (by, _) in leases.items() if by == person}
    assert drawn.count("random") <= len(drawn) // 10 + 1
