import gzip
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from ingest.convert import Converter, Event
from ingest.errors import InputError
from ingest.producing.readers import read_dataset
from ingest.schema import load_schema
from tests.ingest.topics import real_data

CRITEO_LINE = "1\t\t-2\t3" + "\t" * 10 + "\t7e5c2ff4" + "\t" * 25 + "\n"
AVAZU = "id,click,hour,C1,site_id,device_ip\n10000169349117863715,1,14102113,1005,1fbe01fe,ddd2926e\n"
MOVIELENS = "196\t242\t3\t881250949\n186\t302\t4.0\t891717742\n"
GENERATED = {"criteo": ("c.tsv", CRITEO_LINE * 3), "avazu": ("a.csv", AVAZU), "movielens": ("m.tsv", MOVIELENS)}
REAL = {"criteo": "criteo_100k.tsv.gz", "avazu": "avazu_40k.csv.gz", "movielens": "movielens_100k.tsv"}


def read(folder: Path, name: str, text: str, file: str = "file.tsv") -> list[Event]:
    path = folder / file
    path.write_bytes(gzip.compress(text.encode()) if file.endswith(".gz") else text.encode())
    return list(read_dataset(name, path))


@pytest.mark.parametrize("file", ["file.tsv", "file.tsv.gz"])
def test_criteo_line_becomes_integers_and_categories(tmp_path: Path, file: str) -> None:
    event = read(tmp_path, "criteo", CRITEO_LINE, file)[0]
    assert (event.label, event.fields) == (1, {"I2": -2, "I3": 3, "C1": "7e5c2ff4"})


def test_avazu_hour_becomes_event_time_and_hour_of_day(tmp_path: Path) -> None:
    event = read(tmp_path, "avazu", AVAZU)[0]
    assert (event.label, event.event_time) == (1, 1413896400.0)
    assert event.fields == {"C1": "1005", "site_id": "1fbe01fe", "device_ip": "ddd2926e", "hour": 13}


def test_movielens_rating_of_four_is_a_click(tmp_path: Path) -> None:
    found = read(tmp_path, "movielens", MOVIELENS)
    assert [event.label for event in found] == [0, 1]
    assert found[0] == Event(881250949.0, 0, {"user": "196", "item": "242"})


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("criteo", CRITEO_LINE + "1\t2\n", r"file\.tsv, line 2: found 2 fields; expected 40"),
        ("criteo", CRITEO_LINE.replace("-2", "x"), "line 1: found invalid literal"),
        ("criteo", CRITEO_LINE + "2" + CRITEO_LINE[1:], "line 2: found label '2'"),
        ("avazu", "a,b\n1,2\n", "line 1: found header 'a,b'"),
        ("avazu", "", "line 1: found header"),
        ("avazu", AVAZU + "1,0,14102113,1005\n", "line 3: found 4 fields; expected 6"),
        ("avazu", AVAZU.replace("14102113", "14109913"), "line 2: found hour '14109913'; expected YYMMDDHH"),
        ("movielens", MOVIELENS + "1\t2\t3\n", "line 3: found"),
    ],
)
def test_broken_line_is_named(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read(tmp_path, name, text)


def test_cut_off_gzip_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv.gz"
    path.write_bytes(gzip.compress((CRITEO_LINE * 1000).encode())[:-20])
    with pytest.raises(InputError, match=r"c\.tsv\.gz, line \d+"):
        list(read_dataset("criteo", path))


def test_file_that_is_no_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv.gz"
    path.write_text(CRITEO_LINE)
    with pytest.raises(InputError, match=r"line 1: found Not a gzipped file"):
        list(read_dataset("criteo", path))


def test_broken_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="expected a parquet file with userID and movieID"):
        list(read_dataset("movielens", tmp_path / "pairs.parquet"))


def test_unknown_dataset_and_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown dataset 'kriteo'"):
        read_dataset("kriteo", tmp_path)
    with pytest.raises(ConfigError, match="no dataset file"):
        read_dataset("criteo", tmp_path / "none")


@pytest.mark.parametrize("name", list(REAL))
def test_first_events_of_a_file_fit_their_schema(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    data = real_data()
    record_property("data", "real" if data else "generated")
    if data is None:
        (tmp_path / GENERATED[name][0]).write_text(GENERATED[name][1])
    path = data / REAL[name] if data else tmp_path / GENERATED[name][0]
    found = list(islice(read_dataset(name, path), 3000))
    samples, faults = Converter(load_schema(name)).convert_events(found)
    assert (len(samples), faults) == (len(found), {})


def test_pairs_of_the_real_parquet_become_clicks() -> None:
    data = real_data()
    if data is None or not (data / "movielens_1m_pairs.parquet").exists():
        pytest.skip("movielens_1m_pairs.parquet is missing: set FRESHET_DATA to the folder that holds it")
    event = next(read_dataset("movielens", data / "movielens_1m_pairs.parquet"))
    assert (event.label, set(event.fields)) == (1, {"user", "item"})
