"""A store equals the task that is read from the same tables, whatever the parts and the memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from small_tables import small_tables, task_in_memory, write_parts

from unimp.config.recipe import Recipe
from unimp.data.catalog import load_task
from unimp.data.store import build, edges, ids, native
from unimp.data.store.build import BuildOptions, build_store
from unimp.data.store.manifest import verify_store
from unimp.data.store.task import open_store
from unimp.errors import OutputError, RecipeError, TaskError
from unimp.tasks.task import Task


def assert_equal(stored: Task, expected: Task) -> None:
    assert stored.graph.indptr.dtype == torch.int64
    assert stored.graph.source.dtype == torch.int32
    for found, wanted in zip(stored.graph.arrays, expected.graph.arrays, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert torch.equal(found.to(wanted.dtype), wanted)
    assert torch.equal(stored.labels, expected.labels)
    for name in ("train", "val", "test"):
        assert torch.equal(getattr(stored.split, name), getattr(expected.split, name))
    assert stored.class_names == expected.class_names
    assert stored.node_names is not None
    assert tuple(stored.node_names) == expected.node_names
    assert stored.metric == expected.metric


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv"])
def test_a_store_equals_the_task_from_the_same_tables(tmp_path: Path, form: str) -> None:
    tables = small_tables()
    recipe = write_parts(tmp_path, tables, form)
    build_store(recipe, tmp_path / "small.graph")
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, tables))
    assert not (tmp_path / "small.graph" / "building").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"tables.directed": True},
        {"tables.edge_features": {}},
        {"tables.edge_features": {}, "tables.features": {}, "tables.directed": True},
        {"tables.split": "", "task.split": 3},
        {"tables.label": ["is_a", "is_b"], "tables.split": ""},
        {"tables.label": "several", "tables.label_separator": ";", "tables.split": ""},
    ],
    ids=["directed", "no edge features", "no features", "drawn", "binary", "separated"],
)
def test_options_of_tables_mean_the_same_for_a_store(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    nodes, edge_table = small_tables()
    kinds = nodes["kind"].to_pylist()
    for letter in "ab":
        column = [None if kind is None else int(kind == letter) for kind in kinds]
        nodes = nodes.append_column(f"is_{letter}", pa.array(column))
    several = [None if kind is None else f"{kind}; x" for kind in kinds]
    nodes = nodes.append_column("several", pa.array(several))
    recipe = write_parts(tmp_path, (nodes, edge_table)).with_settings(settings)
    build_store(recipe, tmp_path / "small.graph")
    expected = task_in_memory(recipe, (nodes, edge_table))
    assert_equal(open_store(tmp_path / "small.graph"), expected)


def test_integer_ids_are_compared_as_integers(tmp_path: Path) -> None:
    tables = small_tables(text=False)
    recipe = write_parts(tmp_path, tables)
    build_store(recipe, tmp_path / "small.graph")
    stored = open_store(tmp_path / "small.graph")
    assert_equal(stored, task_in_memory(recipe, tables))
    assert pa.array(stored.node_names).type == pa.int64()


def test_little_memory_and_no_compiler_give_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_parts(tmp_path, small_tables())
    expected = build_store(recipe, tmp_path / "whole.graph")
    # Several divisions of the ids, several buckets, several chunks per part.
    monkeypatch.setattr(build, "count_divisions", lambda num_nodes, memory: 3)
    monkeypatch.setattr(edges, "_MOST_ENTRIES", 500)
    monkeypatch.setattr(ids, "IDS_PER_CHUNK", 64)
    monkeypatch.setattr(edges, "_GROUPED", 64)
    monkeypatch.setattr("unimp.data.store.columns._MOST_ROWS", 300)
    assert build_store(recipe, tmp_path / "divided.graph")["content"] == expected["content"]
    monkeypatch.setattr(native, "library", lambda: None)
    assert build_store(recipe, tmp_path / "python.graph")["content"] == expected["content"]


def test_values_in_the_names_of_folders_are_columns(tmp_path: Path) -> None:
    nodes, edge_table = small_tables()
    recipe = write_parts(tmp_path, (nodes, edge_table))
    colors = ["blue", "green", "red"]
    rows = [nodes.filter(pa.compute.equal(nodes["color"], color)) for color in colors]
    nodes = pa.concat_tables(rows)
    ends = pa.compute.and_(
        *(
            pa.compute.is_in(edge_table[c], value_set=nodes["id"].combine_chunks())
            for c in ("from", "to")
        )
    )
    edge_table = edge_table.filter(ends)
    for color, table in zip(colors, rows, strict=True):
        (tmp_path / "hive" / f"color={color}").mkdir(parents=True)
        path = tmp_path / "hive" / f"color={color}" / "part.parquet"
        pyarrow.parquet.write_table(table.drop_columns("color"), path)
    (tmp_path / "hive" / "_SUCCESS").touch()
    pyarrow.parquet.write_table(edge_table, tmp_path / "edges.parquet")
    paths = {
        "tables.nodes": str(tmp_path / "hive"),
        "tables.edges": str(tmp_path / "edges.parquet"),
    }
    recipe = recipe.with_settings(paths)
    build_store(recipe, tmp_path / "small.graph")
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, (nodes, edge_table)))


def test_sixteen_bits_halve_the_features_and_batches_are_float32(tmp_path: Path) -> None:
    tables = small_tables()
    recipe = write_parts(tmp_path, tables)
    recipe = recipe.with_settings({"tables.edge_features": {}})
    build_store(recipe, tmp_path / "small.graph", BuildOptions(precision="f16"))
    stored = open_store(tmp_path / "small.graph")
    expected = task_in_memory(recipe, tables).graph.x
    assert isinstance(expected, torch.Tensor)
    assert isinstance(stored.graph.x, torch.Tensor)
    assert torch.equal(stored.graph.x, expected.half())
    part = stored.graph.induced_subgraph(torch.arange(10))
    assert isinstance(part.x, torch.Tensor)
    assert part.x.dtype == torch.float32


def test_statistics_of_numbers_and_words_are_those_of_all_rows(tmp_path: Path) -> None:
    nodes, edge_table = small_tables()
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal(len(nodes)) * 1e-3 + 1e6
    nodes = nodes.append_column("large", pa.array(numbers))
    nodes = nodes.append_column("same", pa.array([0.1] * len(nodes)))
    words = [" ".join(rng.choice(["red", "fox", "jumps"], 2)) for _ in range(len(nodes))]
    nodes = nodes.append_column("words", pa.array(words))
    kinds = {"large": "numeric", "same": "numeric", "words": "text"}
    recipe = write_parts(tmp_path, (nodes, edge_table)).with_settings(
        {"tables.features": kinds, "tables.text_width": 8}
    )
    build_store(recipe, tmp_path / "small.graph")
    found = open_store(tmp_path / "small.graph").graph.x
    expected = task_in_memory(recipe, (nodes, edge_table)).graph.x
    assert isinstance(found, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_integers_in_some_parts_and_text_in_others_are_compared_as_text(tmp_path: Path) -> None:
    nodes, edge_table = small_tables(text=False)
    for index, name in enumerate(("from", "to")):
        text = edge_table[name].cast(pa.string())
        edge_table = edge_table.set_column(index, name, text)
    recipe = write_parts(tmp_path, (nodes, edge_table))
    build_store(recipe, tmp_path / "small.graph")
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, (nodes, edge_table)))


def test_text_ids_after_integers_are_refused_with_their_file(tmp_path: Path) -> None:
    nodes, edge_table = small_tables(text=False)
    recipe = write_parts(tmp_path, (nodes, edge_table))
    path = tmp_path / "edges" / "3.parquet"
    part = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(part.set_column(0, "from", part["from"].cast(pa.string())), path)
    with pytest.raises(TaskError, match=r"3\.parquet"):
        build_store(recipe, tmp_path / "small.graph")


def changed(tables: tuple[pa.Table, pa.Table], column: str, row: int, value: Any) -> Any:
    which = 0 if column in tables[0].column_names else 1
    values = tables[which][column].to_pylist()
    values[row] = value
    index = tables[which].column_names.index(column)
    kind = tables[which].schema.field(column).type
    made = tables[which].set_column(index, column, pa.array(values, kind))
    return (made, tables[1]) if which == 0 else (tables[0], made)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("id", "node 7 é", ["2.parquet", "row 51", "node 7 é", "also in"]),
        ("id", None, ["2.parquet", "row 51", "empty"]),
        ("from", "node x", ["edges", "row 84", "'node x'", "unknown_ids"]),
        ("embedding", [1.0, 2.0], ["2.parquet", "embedding", "row 51", "2 numbers"]),
        ("part", "training?", ["2.parquet", "part", "row 51", "training?"]),
    ],
)
def test_problems_name_the_file_and_the_row(
    tmp_path: Path, column: str, value: Any, expected: list[str]
) -> None:
    tables = small_tables()
    row = tables[0]["id"].to_pylist().index("node 7 é") if value == "node 7 é" else None
    assert row != 183
    # Row 183 of the nodes is row 51 of part 2; row 183 of the edges is row 84 of part 1.
    recipe = write_parts(tmp_path, changed(tables, column, 183, value))
    with pytest.raises(TaskError) as refused:
        build_store(recipe, tmp_path / "small.graph")
    for words in expected:
        assert words in str(refused.value)


def test_edges_with_unknown_ids_are_skipped_if_asked(tmp_path: Path) -> None:
    tables = changed(small_tables(), "from", 183, "nobody")
    recipe = write_parts(tmp_path, tables).with_settings({"tables.unknown_ids": "skip"})
    manifest = build_store(recipe, tmp_path / "small.graph")
    assert manifest["skipped_edges"] == 1
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, tables))


def test_files_of_ids_give_the_split(tmp_path: Path) -> None:
    tables = small_tables()
    recipe = write_parts(tmp_path, tables)
    names = tables[0]["id"].to_pylist()
    parts = tables[0]["part"].to_pylist()
    for part in ("train", "val", "test"):
        chosen = [name for name, own in zip(names, parts, strict=True) if own == part]
        (tmp_path / f"{part}.txt").write_text("\n".join(chosen), encoding="utf-8")
    files = {
        f"tables.{part}_ids": str(tmp_path / f"{part}.txt") for part in ("train", "val", "test")
    }
    recipe = recipe.with_settings({"tables.split": "", **files})
    build_store(recipe, tmp_path / "small.graph")
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, tables))


class Stop(BaseException):
    """Ends a build as a kill does: nothing is cleaned up."""


def test_a_stopped_build_resumes_and_gives_the_same_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "_MOST_ENTRIES", 500)
    monkeypatch.setattr("unimp.data.store.workspace._RECORDED_EVERY", 0.0)
    monkeypatch.setattr(build, "_SAVED_EVERY", 0.0)
    recipe = write_parts(tmp_path, small_tables())
    units: list[str] = []
    expected = build_store(
        recipe, tmp_path / "whole.graph", on_step=lambda step: units.append(step.name)
    )
    stops = range(0, len(units), 3)
    out = tmp_path / "stopped.graph"
    for last in stops:
        seen = 0

        def stop(_: build.Step, last: int = last) -> None:
            nonlocal seen
            seen += 1
            if seen > 1 + last % 4:
                raise Stop

        try:
            found = build_store(recipe, out, on_step=stop)
            break
        except Stop:
            assert not (out / "manifest.json").exists()
    else:
        found = build_store(recipe, out)
    assert found["content"] == expected["content"]
    assert not verify_store(out)


def test_a_build_from_other_tables_starts_again(tmp_path: Path) -> None:
    recipe = write_parts(tmp_path / "a", small_tables())
    other = write_parts(tmp_path / "b", small_tables(seed=1))
    out = tmp_path / "small.graph"

    def stop(step: build.Step) -> None:
        if step.name == "hashes":
            raise Stop

    with pytest.raises(Stop):
        build_store(recipe, out, on_step=stop)
    found = build_store(other, out)
    assert found["content"] == build_store(other, tmp_path / "other.graph")["content"]


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    build_store(write_parts(tmp_path, small_tables()), tmp_path / "small.graph")
    path = tmp_path / "small.graph" / "x.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (line,) = verify_store(tmp_path / "small.graph")
    assert "x.npy" in line
    path.write_bytes(data[:-1])
    with pytest.raises(TaskError, match=r"x\.npy"):
        open_store(tmp_path / "small.graph")


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    build_store(write_parts(tmp_path, small_tables()), tmp_path / "small.graph")
    path = tmp_path / "small.graph" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"directed": True}))
    with pytest.raises(TaskError, match=r"manifest\.json"):
        load_task(str(tmp_path / "small.graph"))


def refusals(recipe: Recipe) -> list[tuple[Recipe, str, str]]:
    return [
        (recipe, "small", "graph"),
        (recipe.with_settings({"tables.group": "color"}), "small.graph", "group"),
        (recipe.with_settings({"task.self_loops": True}), "small.graph", "self_loops"),
        (recipe.with_settings({"tables.edges": "nowhere/*.csv"}), "small.graph", "nowhere"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_what_a_store_cannot_be_is_refused(tmp_path: Path, number: int) -> None:
    recipe, name, word = refusals(write_parts(tmp_path, small_tables()))[number]
    with pytest.raises((OutputError, RecipeError, TaskError), match=word):
        build_store(recipe, tmp_path / name)


def test_the_hash_of_a_stored_task_follows_the_store(tmp_path: Path) -> None:
    tables = small_tables()
    hashes = set()
    for number, given in enumerate((tables, tables, changed(tables, "color", 3, "red"))):
        recipe = write_parts(tmp_path / str(number), given)
        build_store(recipe, tmp_path / f"{number}.graph")
        hashes.add(open_store(tmp_path / f"{number}.graph").data_hash())
    assert len(hashes) == 2
    first = open_store(tmp_path / "0.graph")
    assert replace(first, metric="rocauc").data_hash() != first.data_hash()


def change_a_part(folder: Path) -> None:
    """Write the last part of the nodes again, in another order."""
    path = sorted((folder / "nodes").iterdir())[-1]
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.take(list(range(len(table)))[::-1]), path)


def test_a_store_whose_build_was_killed_at_its_end_is_not_taken_for_other_tables(
    tmp_path: Path,
) -> None:
    recipe, out = write_parts(tmp_path, small_tables(), "parquet"), tmp_path / "small.graph"
    built = build_store(recipe, out)
    (out / "building").mkdir()  # the kill came before this folder was removed
    assert build_store(recipe, out)["content"] == built["content"]
    assert not (out / "building").exists()
    (out / "building").mkdir()
    change_a_part(tmp_path)
    with pytest.raises(OutputError, match="other tables"):
        build_store(recipe, out)


def test_tables_that_change_during_a_build_are_refused(tmp_path: Path) -> None:
    recipe = write_parts(tmp_path, small_tables(), "parquet")

    def change(step: build.Step) -> None:
        if step.name == "rows" and step.done == 0:
            change_a_part(tmp_path)

    with pytest.raises(TaskError, match="changed"):
        build_store(recipe, tmp_path / "small.graph", on_step=change)
    again = build_store(recipe, tmp_path / "small.graph")
    fresh = build_store(recipe, tmp_path / "fresh.graph")
    assert again["content"] == fresh["content"]


def test_edge_features_that_do_not_fit_into_16_bits_are_refused(tmp_path: Path) -> None:
    nodes, edge_table = small_tables()
    place = edge_table.column_names.index("weight")
    large = pa.array([[1e6]] * len(edge_table))
    tables = (nodes, edge_table.set_column(place, "weight", large))
    recipe = write_parts(tmp_path, tables, "parquet")
    with pytest.raises(TaskError, match="16-bit"):
        build_store(recipe, tmp_path / "small.graph", BuildOptions(precision="f16"))


def test_parts_without_rows_are_skipped(tmp_path: Path) -> None:
    tables = small_tables()
    recipe = write_parts(tmp_path, tables, "parquet")
    for name, table in zip(("nodes", "edges"), tables, strict=True):
        pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / name / "0-empty.parquet")
    build_store(recipe, tmp_path / "small.graph")
    assert_equal(open_store(tmp_path / "small.graph"), task_in_memory(recipe, tables))
