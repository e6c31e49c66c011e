import pytest

from infra.base.link_gbit import LinkGbit


@pytest.mark.parametrize("text", ["1", "0.2/0.02", "0.5/2", "0"])
def test_a_speed_is_written_as_it_is_read(text: str) -> None:
    assert str(LinkGbit.parse(text)) == text


@pytest.mark.parametrize("text", ["", "x", "1/x", "/1", "1/2/3"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        LinkGbit.parse(text)


def test_an_uplink_that_is_not_given_is_as_fast_as_the_link() -> None:
    assert LinkGbit.of(0.5) == LinkGbit.of(0.5, 0.0) == LinkGbit.parse("0.5/0.5") == (0.5, 0.5)
    assert (LinkGbit.of(0.5).own_uplink, LinkGbit.of(0.5, 2.0).own_uplink) == (0.0, 2.0)
    assert LinkGbit.of(0.5, 2.0).slower == 0.5


def test_a_worker_is_told_what_is_known_of_its_link() -> None:
    assert LinkGbit.of(0.0).options == ()
    assert LinkGbit.of(0.5).options == ("--link", "0.5")
    assert LinkGbit.of(0.5, 0.05).options == ("--link", "0.5", "--uplink", "0.05")
