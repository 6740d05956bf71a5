"""Labels and events as files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from unimp.data.synthetic import synthetic_task
from unimp.data.tables.label_files import read_labels
from unimp.errors import OutputError
from unimp.serving.events import Label, Predicted, Retraction, Undo
from unimp.serving.export import (
    for_spreadsheets,
    from_spreadsheet,
    json_lines,
    labels_table,
    log_table,
    write_export,
)
from unimp.serving.store import Store, Vocabulary
from unimp.tasks.names import class_names


def test_labels_and_events_in_all_formats(store: Store, tmp_path: Path) -> None:
    predicted = {"Zürich, <b>": Predicted(label="y", probability=0.5)}
    store.write("labeler", Label(node="Zürich, <b>", label='a "b"'), predicted=predicted)
    store.write("labeler", Label(node="m", label="x", source="file"))
    store.write("labeler", Label(node="gone", label="x"))
    store.write("labeler", Retraction(node="gone"))
    store.write("labeler", Label(node="m", label="y"))
    store.write("labeler", Undo(undoes=5))
    labels, log = labels_table(store.reader), log_table(store.reader)
    assert labels.select(["node", "label", "version", "source"]).to_pylist() == [
        {"node": "Zürich, <b>", "label": 'a "b"', "version": 1, "source": "labeler"},
        {"node": "m", "label": "x", "version": 2, "source": "file"},
    ]
    assert log["version"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert log["in_force"].to_pylist() == [True, True, True, True, False, True]
    assert json.loads(log["predicted"][0].as_py())["probability"] == 0.5
    for name, table in (("labels", labels), ("log", log)):
        for suffix in ("parquet", "csv", "jsonl"):
            write_export(tmp_path / f"{name}.{suffix}", table)
        assert pyarrow.parquet.read_table(tmp_path / f"{name}.parquet").equals(table)
        lines = (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == table.to_pylist()
        read = pyarrow.csv.read_csv(tmp_path / f"{name}.csv")
        assert read["version"].to_pylist() == table["version"].to_pylist()
    with pytest.raises(OutputError, match="exists"):
        write_export(tmp_path / "log.jsonl", log)
    write_export(tmp_path / "log.jsonl", labels, force=True)
    assert "token" not in json_lines(log).decode()


@pytest.mark.parametrize("several", [False, True])
def test_exported_labels_are_a_label_file(tmp_path: Path, several: bool) -> None:
    task = synthetic_task(
        num_nodes=20, num_edges=40, num_classes=3, multilabel_tasks=2 if several else 0
    )
    names = class_names(task)
    labels = [(), names, names[:1]] if several else list(names)
    with Store(tmp_path, Vocabulary(classes=names, several=several)) as store:
        store.people.add("admin", "admin", token=False)
        for node, label in enumerate(labels):
            store.write("admin", Label(node=str(node), label=label))
        for name in ("labels.csv", "labels.parquet"):
            write_export(tmp_path / name, labels_table(store.reader))
            read = read_labels(tmp_path / name, task)
            expected = [[0, 0], [1, 1], [1, 0]] if several else [0, 1, 2]
            assert read[:3].tolist() == expected
            assert (read[3:] == -1).all()


def test_an_empty_log_has_its_columns(store: Store, tmp_path: Path) -> None:
    assert labels_table(store.reader).num_rows == 0
    write_export(tmp_path / "log.parquet", log_table(store.reader))
    assert "in_force" in pyarrow.parquet.read_table(tmp_path / "log.parquet").column_names


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|x", "'+cmd|x"),
        ("-x", "'-x"),
        ("@scope/name", "'@scope/name"),
        ("'=1", "''=1"),
        ("''@a", "'''@a"),
        ("-1.5", "-1.5"),
        ("+3e5", "+3e5"),
        ("plain", "plain"),
        ("it's", "it's"),
        ("'quoted'", "'quoted'"),
        ("", ""),
    ],
)
def test_a_spreadsheet_computes_no_cell_and_cells_can_be_read_again(cell: str, shown: str) -> None:
    table = for_spreadsheets(pa.table({"node": [cell, None], "version": [1, -2]}))
    assert table.column("node").to_pylist() == [shown, None]
    assert table.column("version").to_pylist() == [1, -2]
    assert from_spreadsheet(shown) == cell
