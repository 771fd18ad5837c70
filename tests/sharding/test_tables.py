"""Embedding tables: what is refused of them, and lists of them in CSV and YAML files."""

import gzip

import pytest

from foretrace.graph import ForetraceError
from foretrace.sharding.tables import Table, check_table, read_tables


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": 0}, "0 rows"),
        ({"dim": 0}, "rows of 0 elements"),
        ({"pooling": float("nan")}, "pooling of nan"),
        ({"dtype": "float7"}, "dtype 'float7'"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"zipf": -1.0}, "exponent of -1"),
        ({"reuse": (0.5, 0.2)}, "adds up to 0.7"),
        ({"reuse": (1.5, -0.5)}, "invalid reuse histogram"),
    ],
)
def test_a_table_that_cannot_be_is_refused(wrong, said):
    with pytest.raises(ForetraceError, match=said):
        check_table(Table(**{"name": "t", "rows": 10, "dim": 8, **wrong}))


def test_a_histogram_may_be_off_by_rounding():
    check_table(Table("t", 10, 8, reuse=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001)))


def written(folder, text, name="tables.csv"):
    path = folder / name
    path.write_text(text)
    return path


def test_csv_and_yaml_say_the_same(tmp_path):
    header = "name,rows,dim,pooling,dtype,reuse,optimizer,sequence,features,count\n"
    csv = f"{header}users,1000,64,2.5,fp16,0.5;0.3;0.2,adam,yes,3,\nitems,1e6,32,,,,,,,2\n"
    yaml = """tables:
  - {name: users, rows: 1000, dim: 64, pooling: 2.5, dtype: fp16, reuse: [0.5, 0.3, 0.2], optimizer: adam,
     sequence: yes, features: 3}
  - {name: items, rows: 1e6, dim: 32, count: 2}
"""
    one, other = read_tables(written(tmp_path, csv)), read_tables(written(tmp_path, yaml, "tables.yaml"))
    assert one == other
    assert [table.name for table in one] == ["users", "items.0", "items.1"]
    assert one[0].sequence and not one[1].sequence
    assert [table.features for table in one] == [3, 1, 1]
    assert one[0].dtype == "float16" and one[0].reuse == (0.5, 0.3, 0.2)


def test_a_compressed_file_is_read_too(tmp_path):
    path = tmp_path / "tables.csv.gz"
    path.write_bytes(gzip.compress(b"rows,dim\n100,16\n"))
    assert read_tables(path)[0].rows == 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,rows,dims\na,1,2\n", "line 1: a table has no field 'dims'.*Did you mean dim"),
        ("name,rows,dim\na,0,2\n", "line 2: table a has 0 rows"),
        ("name,rows,dim\na,5,2\n\nb,many,2\n", "line 4: rows is 'many'"),
        ("name,rows,dim,reuse\na,5,2,0.5;0.2\n", "line 2: the reuse histogram of table a adds up to 0.7"),
        ("name,rows,dim\na,5\n", "line 2: 2 cells under 3 columns"),
        ("name,rows\na,5\n", "line 2: a table without dim"),
        ("name,rows,dim\na,5,2\na,5,2\n", "line 3: a table is called a already, in line 2"),
        ("name,rows,dim,count\na,5,2,0\n", "line 2: table a has a count of 0"),
        ("name,rows,dim,kinds\na,5,2,diagonal\n", "line 2: kinds is 'diagonal'"),
        ("name,rows,dim,sequence\na,5,2,maybe\n", "line 2: sequence is 'maybe'.*yes or no"),
        ("name,rows,dim,features\na,5,2,0\n", "line 2: table a has 0 features"),
        ("name,rows,dim,features\na,5,2,few\n", "line 2: features is 'few'.*whole number"),
        ("fqn,hash_size,emb_dim,sum_pooling_factor,features\na,5,2,many,4\n", "line 2: pooling is 'many'"),
        ("name,rows,dim\na,1.5,2\n", "line 2: rows is '1.5'"),
        ("", "lists no tables"),
    ],
)
def test_what_is_wrong_in_a_csv_is_told_with_its_line(tmp_path, text, said):
    with pytest.raises(ForetraceError, match=said):
        read_tables(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "- {name: a, rows: 5, dim: 2}\n- {name: b, rows: 5,\n  dimension: 2}\n",
            "line 3: a table has no field",
        ),
        ("- {name: a, rows: 5, dim: 2}\n- {name: b, rows: -1, dim: 2}\n", "line 2: table b has -1 rows"),
        ("- {name: a\n- b", "line .: did not find"),
        ("just words", "is no list of tables"),
        ("- 5\n", "line 1: no table"),
        ("- {name: a, rows: 5,\n  dim: {a: 1}}\n", "line 2: neither a number, a word nor a list"),
        ("- {name: a, rows: 5, dim: 2, reuse: &a [*a]}\n", "line 1: neither a number, a word nor a list"),
    ],
)
def test_what_is_wrong_in_a_yaml_is_told_with_its_line(tmp_path, text, said):
    with pytest.raises(ForetraceError, match=said):
        read_tables(written(tmp_path, text, "tables.yml"))


def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path):
    with pytest.raises(ForetraceError, match="can't be read"):
        read_tables(tmp_path / "absent.csv")
    path = tmp_path / "tables.csv.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(ForetraceError, match="can't be read"):
        read_tables(path)


def test_the_listing_of_torchrecs_planner_is_read(shared):
    tables = read_tables(shared / "public" / "sharding" / "production_like_1935_tables.csv.gz")
    assert len(tables) == 1935
    assert tables[0].rows == 80_000_000 and tables[0].dim == 128
    assert tables[0].features == 4 and tables[0].ids == 6066


def test_a_list_without_end_is_refused(tmp_path, monkeypatch):
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with pytest.raises(ForetraceError, match=r"zero\.csv is a device: reading it may never end"):
        read_tables(tmp_path / "zero.csv")
    monkeypatch.setattr("foretrace.sharding.tables.MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"name,rows,dim\n" + bytes(1 << 21)))
    with pytest.raises(ForetraceError, match=r"bomb\.csv\.gz is too large for a list of tables \(more than 1 MB\)"):
        read_tables(tmp_path / "bomb.csv.gz")
