import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.run.figures import BARS, duration, number, size, sparkline


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (9_999, "9,999"), (9_999.6, "10.0k"), (999_600, "1.00M"), (1.234e9, "1.23G")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (999, "999 B"), (12_345, "12.3 kB"), (5e15, "5000 TB")])
def test_sizes_have_units(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 s"), (59.96, "1 min 00 s"), (11_220, "3 h 07 min"), (63_158_400, "731 days")]
)
def test_durations_read_well(value: float, text: str) -> None:
    assert duration(value) == text


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(0, 60))
def test_sparkline_fits_and_uses_its_bars(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(BARS)


def test_rising_values_draw_a_rising_line() -> None:
    assert sparkline(range(8), 8) == BARS
    assert sparkline(range(80), 8) == BARS
