"""What a batch reads, cut into parts: the same ones every time, and damaged shards are rows."""

import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from supple.cluster.sources import READ, TOGETHER, Part, Sample, parts_of, read, tables
from supple.errors import DataError

ENDINGS = (".png", ".jpg")


def shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def table(path: Path, columns: dict[str, list], rows: int = 2) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=rows)
    return path


def samples(path: Path, size: int = 1000) -> list[Sample]:
    return [sample for part in parts_of([path], size) for sample in read(part, ENDINGS)]


def test_files_become_parts_of_a_size_in_their_order_and_shards_parts_of_their_own(tmp_path):
    tar = shard(tmp_path / "a.tar", {"x.png": b"x"})
    found = [Path(f"{number}.png") for number in range(5)]
    parts = parts_of([*found[:3], tar, *found[3:]], 2)
    assert [part.files for part in parts] == [("0.png", "1.png"), ("2.png", "3.png"), ("4.png",), ()]
    assert [part.number for part in parts] == [0, 1, 2, 3]
    assert parts[3].shard == str(tar)
    assert [Part.from_json(part.to_json()) for part in parts] == parts


def test_row_groups_are_put_together_until_a_part_has_enough_rows(tmp_path):
    path = table(tmp_path / "a.parquet", {"image": [b"%d" % row for row in range(9)]}, rows=2)  # 2, 2, 2, 2, 1 rows
    assert [part.groups for part in parts_of([path], 3)] == [(0, 1), (2, 3), (4,)]
    assert [part.groups for part in parts_of([path], 2)] == [(0,), (1,), (2,), (3,), (4,)]
    for size in (1, 3, 100):
        assert samples(path, size) == [Sample(f"{path}#{row}", b"%d" % row) for row in range(9)]


def test_rows_are_named_by_their_column_path_or_by_what_stands_beside_their_bytes(tmp_path):
    named = table(tmp_path / "named.parquet", {"path": ["a", None], "image": [b"1", b"2"], "label": [3, 4]})
    assert samples(named) == [Sample("a", b"1"), Sample(f"{named}#1", b"2")]
    inside = table(tmp_path / "inside.parquet", {"image": [{"bytes": b"1", "path": "a"}, {"bytes": None, "path": "b"}]})
    assert samples(inside) == [Sample("a", b"1"), Sample("b", None, "b has no bytes")]


@pytest.mark.parametrize("columns", [{"label": [1]}, {"image": [b"1"], "other": [b"2"]}], ids=["none", "two"])
def test_a_table_without_one_column_of_files_is_refused_and_says_what_it_has(tmp_path, columns):
    with pytest.raises(DataError, match=", ".join(columns)):
        parts_of([table(tmp_path / "a.parquet", columns)])


def test_what_is_no_parquet_is_refused_by_name(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        parts_of([tmp_path / "a.parquet"])


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_a_tar_gives_its_pictures_and_nothing_else(tmp_path, ending, mode):
    path = shard(tmp_path / f"a{ending}", {"1.png": b"one", "1.cls": b"7", "in/2.JPG": b"two"}, mode)
    assert samples(path) == [Sample(f"{path}/1.png", b"one"), Sample(f"{path}/in/2.JPG", b"two")]


def test_a_shard_that_breaks_off_gives_what_can_be_read_and_then_an_error(tmp_path):
    path = shard(tmp_path / "a.tar", {"1.png": b"1" * 2000, "2.png": b"2" * 2000})
    path.write_bytes(path.read_bytes()[:3600])  # 512 + 2048 of the first, and the second breaks off in its content
    first, broken = samples(path)
    assert first == Sample(f"{path}/1.png", b"1" * 2000)
    assert broken.path == str(path)
    assert "cannot be read to its end" in (broken.error or "")
    (tmp_path / "no.tar").write_bytes(b"no tar at all")
    (only,) = samples(tmp_path / "no.tar")
    assert only.error is not None


def test_an_empty_shard_is_one_row_that_says_so(tmp_path):
    (only,) = samples(shard(tmp_path / "a.tar", {"1.txt": b"1"}))
    assert "holds no file that ends with .png, .jpg" in (only.error or "")


def test_names_that_are_not_utf_8_have_a_row_with_an_error():
    (only,) = read(Part(0, files=("\udcff.png",)), ENDINGS)
    assert only.path == "?.png"
    assert "not UTF-8" in (only.error or "")


@pytest.mark.parametrize("count", [1, TOGETHER, TOGETHER + 1, 3 * TOGETHER])
def test_every_row_has_its_place_and_only_the_last_says_that_it_is(count):
    made = list(tables(Part(7), (Sample(str(number)) for number in range(count))))
    rows = [row for one in made for row in one.to_pylist()]
    assert all(one.schema == READ and len(one) <= TOGETHER for one in made)
    assert [row["place"] for row in rows] == list(range(count))
    assert [row["last"] for row in rows] == [False] * (count - 1) + [True]
    assert {row["part"] for row in rows} == {7}
