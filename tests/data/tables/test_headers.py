"""Files without a header are recognized, and headers are not mistaken for data."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.tables.headers import is_amount, is_data, is_end
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.errors import TaskError

WORD = st.text(st.characters(categories=["Ll"], max_codepoint=0x17F), min_size=3, max_size=8)


def refusal(path: Path, **options: list[str]) -> str:
    problems = Problems()
    assert open_table(path, "nodes", problems, **options) is None
    with pytest.raises(TaskError) as error:
        problems.refuse()
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n1,2\n2,0\n",
        "n1,n2\nn2,n3\nn3,n1\n",
        "a,b\nb,c\nc,a\n",  # a and b are usual names, but they occur again
        "n1,red,5\nn2,blue,7\nn3,red,NA\n",
        "n1\t0.5\nn2\t0.25\n",
        "n1,,5\nn2,red,6\nn3,,7\n",  # the first row has a gap, as others have
        '"anna","paper, on graphs",1\n"bert","paper, on trees",2\n',
    ],
)
def test_a_file_without_a_header_is_refused_in_clear_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    message = refusal(path)
    assert "nodes.csv, line 1" in message
    assert "no header" in message
    assert "names of the columns" in message


@pytest.mark.parametrize(
    "text",
    [
        "id,age\nn1,5\nn2,6\n",
        "name,2019,2020\nanna,1,2\nbert,3,4\n",
        "customer,0,1,2\nc17,1,2,3\nc18,4,5,6\n",
        ",age,color\n0,5,red\n1,6,blue\n",  # as pandas writes an index
        "from,to\nanna,bert\nbert,carl\n",
        "gene,sample1,sample2\nBRCA1,0.5,1\nTP53,2,3\n",
        "id,about\nn1,some words\nn2,other words\n",
        "name,color\nanna,red\nbert,red\n",
        "red,blue\n1,0\n0,1\n",
        "id\nn1\nn2\n",
    ],
)
def test_a_header_is_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    problems = Problems()
    assert open_table(path, "nodes", problems) is not None
    assert not problems.found


def test_numbers_are_names_if_the_recipe_names_them(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("0,1\n5,7\n7,5\n")
    problems = Problems()
    table = open_table(path, "edges", problems, wanted=["0", "1"])
    assert table is not None
    assert table.num_rows == 2


@given(
    names=st.lists(WORD, min_size=1, max_size=5, unique=True),
    numbers=st.lists(st.integers(-99, 999), min_size=2, max_size=30),
)
def test_words_above_numbers_are_a_header_and_numbers_are_not(
    names: list[str], numbers: list[int]
) -> None:
    rows = [[str(number)] * len(names) for number in numbers]
    assert not is_data(names, rows)
    assert is_data(rows[0], rows[1:])


@given(st.lists(st.integers(0, 20), min_size=12, max_size=60))
def test_ids_that_occur_again_are_data(ids: list[int]) -> None:
    rows = [[f"node-{a}", f"node-{b}"] for a, b in zip(ids, ids[1:] + ids[:1], strict=True)]
    assert is_data(rows[0], rows[1:])
    assert not is_data(["first", "second"], rows)


@pytest.mark.parametrize("name", ["row", "totalAmount", "edge_weight", "Count", "", "year"])
def test_names_of_amounts(name: str) -> None:
    assert is_amount(name)


@pytest.mark.parametrize("name", ["senderId", "from_node", "user_1", "Target", "paper"])
def test_names_of_ends(name: str) -> None:
    assert is_end(name)
    assert not is_amount(name)
