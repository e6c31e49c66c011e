"""The policy of ``freshet up`` and ``freshet demo`` follows from the links, unless somebody has set one."""

from pathlib import Path

import pytest

from infra.run.defaults import UNEVEN_POLICY, up_settings
from infra.run.demo import demo_settings

UNEVEN = "dispatch.links_gbit=5,5,0.5,0.5"


def test_uneven_links_make_capacities_elastic_and_decisions_keep_to_the_step() -> None:
    dispatch = up_settings(None, [UNEVEN], {}).dispatch
    assert (dispatch.policy, dispatch.deadline) == (UNEVEN_POLICY, True)


@pytest.mark.parametrize("links", ["dispatch.links_gbit=", "dispatch.links_gbit=5,5,5,5"])
def test_even_links_leave_capacities_equal(links: str) -> None:
    dispatch = up_settings(None, [links], {}).dispatch
    assert (dispatch.policy, dispatch.deadline) == ("esd:1", False)


def test_whoever_sets_a_policy_gets_it_and_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = up_settings(None, [UNEVEN, "dispatch.policy=joint"], {}).dispatch
    assert (flag.policy, flag.deadline) == ("joint", False)
    (tmp_path / "f.toml").write_text('[dispatch]\npolicy = "laia"\n')
    assert up_settings(tmp_path / "f.toml", [UNEVEN], {}).dispatch.policy == "laia"
    monkeypatch.setenv("FRESHET_DISPATCH__POLICY", "esd:1")
    assert up_settings(None, [UNEVEN], {}).dispatch.policy == "esd:1"


def test_the_deadline_of_an_elastic_policy_can_be_switched_off() -> None:
    dispatch = up_settings(None, [UNEVEN, "dispatch.deadline=false"], {}).dispatch
    assert (dispatch.policy, dispatch.deadline) == (UNEVEN_POLICY, False)


def test_workers_may_be_parked_where_the_policy_that_follows_from_the_links_does_it() -> None:
    up_settings(None, [UNEVEN, "dispatch.least_share=0"], {}).dispatch.check_parking()
    assert up_settings(None, [UNEVEN], {}).dispatch.share_bounds.least == (0.0,)


def test_defaults_of_the_command_are_kept() -> None:
    settings = up_settings(None, [], {"run": "mine", "dispatch": {"links_gbit": (5.0, 1.0), "workers": 2}})
    assert (settings.run, settings.dispatch.links_gbit, settings.dispatch.policy) == ("mine", (5.0, 1.0), UNEVEN_POLICY)


def test_a_demo_decides_by_its_links_too() -> None:
    assert demo_settings(None, [], {}, keep_all=True).dispatch.policy == UNEVEN_POLICY
    assert demo_settings(None, ["dispatch.links_gbit="], {}, keep_all=True).dispatch.policy == "esd:1"


def test_links_whose_uplinks_alone_differ_are_uneven() -> None:
    links = ["dispatch.workers=2", "dispatch.links_gbit=1,1"]
    assert up_settings(None, links, {}).dispatch.policy == "esd:1"
    assert up_settings(None, [*links, "dispatch.uplinks_gbit=1,0.1"], {}).dispatch.policy == UNEVEN_POLICY


def test_a_demo_takes_uplinks() -> None:
    found = demo_settings(None, ["dispatch.uplinks_gbit=5,5,0.5,0.1"], {}, keep_all=True).dispatch
    assert found.links == ((5.0, 5.0), (5.0, 5.0), (0.5, 0.5), (0.5, 0.1))


def test_a_demo_over_kafka_names_its_topics_after_the_run() -> None:
    stream = demo_settings(None, ["run=mine"], {}, keep_all=True, own_topics=True).stream
    assert (stream.topic, stream.dead_letter_topic) == ("mine-clicks", "mine-dead-letters")
    assert demo_settings(None, ["stream.topic=taken"], {}, keep_all=True, own_topics=True).stream.topic == "taken"
