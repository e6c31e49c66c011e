"""``freshet init`` as somebody uses it who has a file and no schema."""

from pathlib import Path

import pytest

from ingest.schema import FileColumns, load_schema
from tests.clicks import click_rows, write_clicks
from tests.infra.cli.conftest import Invoke

ROWS = click_rows(300)


@pytest.mark.parametrize("name", ["clicks.jsonl", "flat.jsonl", "clicks.csv", "clicks.parquet"])
def test_the_schema_of_a_file_passes_its_check(name: str, tmp_path: Path, invoke: Invoke) -> None:
    file = write_clicks(tmp_path / name, ROWS)
    done = invoke("init", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "request  left out" in done.stdout
    assert "is different in almost every event" in done.stdout
    schema = load_schema(str(tmp_path / "schema.toml"))
    assert [table.name for table in schema.tables] == ["user", "item", "price_bucket"]
    assert [dense.name for dense in schema.dense_fields] == ["price", "score"]
    assert (schema.partition_by, schema.required) == ("user", ("user",))
    assert schema.file == (None if name == "clicks.jsonl" else FileColumns("clicked", "ts"))
    assert invoke("check", file, "--schema", "schema.toml").returncode == 0


def test_a_schema_is_overwritten_only_on_request(tmp_path: Path, invoke: Invoke) -> None:
    file = write_clicks(tmp_path / "clicks.jsonl", ROWS)
    (tmp_path / "schema.toml").write_text("mine")
    refused = invoke("init", file)
    assert refused.returncode == 2
    assert "schema.toml exists" in refused.stderr
    assert (tmp_path / "schema.toml").read_text() == "mine"
    assert invoke("init", file, "--force").returncode == 0
    assert "[[tables]]" in (tmp_path / "schema.toml").read_text()


@pytest.mark.parametrize(
    ("name", "text", "options", "told"),
    [
        ("empty.jsonl", "", (), "empty.jsonl holds no events"),
        ("empty.csv", "", (), "expected a first line with the names of its columns"),
        ("broken.jsonl", "{\nno\n", (), "none of 2 lines of"),
        ("broken.parquet", "no", (), "expected a Parquet file"),
        ("a.csv", "user,shown\nu,1\n", (), "there are user, shown; expected one with 1 for a click"),
        ("a.csv", "user,shown\nu,1\n", ("--label", "show"), "has no column 'show' (perhaps 'shown')"),
        ("a.csv", "user,click,when\nu,1,soon\n", ("--time", "when"), "column 'when' of"),
        ("a.csv", "user,click\nu,1\nv,1\n", (), "'click' is 1 in all 2 events"),
        ("a.csv", "user,click\nu,maybe\n", (), "there is 'maybe'; expected 1 for a click"),
        ("a.csv", "click,user,user\n1,u,u\n", (), "has the columns ['user'] twice"),
        ("a.csv", "click,user\n1,u\n0,u\n", (), "has no field to learn from (user: has the same value"),
        ("a.jsonl", '{"event_time": 1, "label": 1, "fields": {"u": 1}}', ("--label", "x"), "leave out --label"),
        ("none.jsonl", None, (), "no file at"),
    ],
)
def test_bad_input_is_one_clear_line(
    name: str, text: str | None, options: tuple[str, ...], told: str, tmp_path: Path, invoke: Invoke
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = invoke("init", tmp_path / name, *options)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "schema.toml").exists()


def test_broken_lines_among_good_ones_are_counted(tmp_path: Path, invoke: Invoke) -> None:
    file = write_clicks(tmp_path / "clicks.jsonl", ROWS)
    with file.open("a") as lines:
        lines.write('{"event_time": \n{"event_time": 1, "fields": {"user": "u1"}}\n')
    done = invoke("init", file)
    assert done.returncode == 0
    assert '1 line cannot be read and would be rejected: {"event_time": ' in done.stdout
    assert "1 event without a label 0 or 1 would be rejected" in done.stdout


@pytest.mark.parametrize(
    ("lowest", "transform", "tables"),
    [
        (0, "log1p", ["user", "amount_bucket"]),
        (-1, "signed_log1p", ["user", "amount_bucket"]),
        (-900, "signed_log1p", ["user"]),
    ],
)
def test_large_numbers_are_used_as_logarithms_also_below_zero(
    lowest: int, transform: str, tables: list[str], tmp_path: Path, invoke: Invoke
) -> None:
    amounts = [lowest, *range(11, 4000, 100)]
    lines = [f"u{at % 7},{at % 2},{amount}" for at, amount in enumerate(amounts)]
    (tmp_path / "a.csv").write_text("\n".join(["user,click,amount", *lines]))
    assert invoke("init", tmp_path / "a.csv").returncode == 0
    schema = load_schema(str(tmp_path / "schema.toml"))
    assert [dense.transform for dense in schema.dense_fields] == [transform]
    assert [table.name for table in schema.tables] == tables


def test_combinations_that_pay_become_crosses_of_the_schema(tmp_path: Path, invoke: Invoke) -> None:
    lines = ["user,item,clicked", *(f"u{at % 7},{at % 5},{int((at % 7 + at % 5) % 2)}" for at in range(2000))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    done = invoke("init", tmp_path / "a.csv")
    assert "user × item" in done.stdout
    assert load_schema(str(tmp_path / "schema.toml")).crosses == (("user", "item"),)
    assert "# user×item: logloss lower by 0." in (tmp_path / "schema.toml").read_text()
    assert invoke("init", tmp_path / "a.csv", "--force", "--no-crosses").returncode == 0
    assert "crosses" not in (tmp_path / "schema.toml").read_text()


def test_combinations_that_do_not_pay_are_a_comment(tmp_path: Path, invoke: Invoke) -> None:
    lines = ["user,item,clicked", *(f"u{at % 7},{at % 5},{at // 35 % 2}" for at in range(1500))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert "no combination of two tables" in invoke("init", tmp_path / "a.csv").stdout
    assert "\n# crosses = []\n" in (tmp_path / "schema.toml").read_text()
    assert load_schema(str(tmp_path / "schema.toml")).crosses == ()
