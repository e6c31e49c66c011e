"""Pressure by the kernel's files."""

from pathlib import Path

import pytest

from dispatch.alpha.pressure import CpuPressure, pressure_source


def write(file: Path, avg10: float, total: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"some avg10={avg10:.2f} avg60=1.00 avg300=2.00 total={total}\nfull avg10=0.00 avg60=0 avg300=0 total=0\n"
    )
    return file


def test_the_first_reading_is_of_the_last_ten_seconds(tmp_path: Path) -> None:
    assert CpuPressure(write(tmp_path / "cpu", 40.0, 10)).read(now=5.0) == 0.4


def test_later_readings_are_of_the_time_between(tmp_path: Path) -> None:
    file = write(tmp_path / "cpu", 40.0, 1_000_000)
    pressure = CpuPressure(file)
    pressure.read(now=5.0)
    write(file, 40.0, 1_500_000)
    assert pressure.read(now=7.0) == pytest.approx(0.25)


def test_a_cgroup_of_its_own_goes_before_the_host(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("1:cpu:/\n0::/run.slice\n")
    host = write(tmp_path / "host", 1.0, 1)
    mount = tmp_path / "mount"
    assert pressure_source(own, (mount,), host) == host
    group = write(mount / "run.slice" / "cpu.pressure", 2.0, 2)
    assert pressure_source(own, (mount,), host) == group


@pytest.mark.parametrize("text", ["", "some avg10=x total=1", "some total=1", "full avg10=1 total=1"])
def test_without_usable_figures_nothing_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "host").write_text(text)
    assert pressure_source(tmp_path / "none", (tmp_path / "none",), tmp_path / "host") is None
    assert CpuPressure(tmp_path / "host").read(1.0) is None
    assert CpuPressure(None).read(1.0) is None


def test_a_file_that_goes_away_is_no_error(tmp_path: Path) -> None:
    file = write(tmp_path / "cpu", 40.0, 10)
    pressure = CpuPressure(file)
    pressure.read(1.0)
    file.unlink()
    assert pressure.read(2.0) is None
