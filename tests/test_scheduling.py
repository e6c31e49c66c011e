from collections import Counter

import pytest

from tests.conftest import BROKER_FIXTURE
from tests.scheduling import BROKER_FILES, name_apart, order_of, share_of


def test_whole_runs_are_shared_by_function_and_others_by_file() -> None:
    run = "tests/end_to_end/test_exactness.py::test_the_same"
    assert (
        share_of(f"{run}[esd:1]") == share_of(f"{run}[a::b]") != share_of("tests/end_to_end/test_exactness.py::test_b")
    )
    live = "tests/end_to_end/test_live.py"
    assert share_of(f"{live}::test_a") == share_of(f"{live}::test_b")
    assert share_of("tests/ps/test_store.py::test_a") == share_of("tests/ps/test_store.py::test_b[1]")


def test_long_tests_are_begun_first() -> None:
    tests = ["tests/ps/test_store.py::a", "tests/infra/base/test_wire.py::b", "tests/end_to_end/test_stream.py::c"]
    longest = ["tests/infra/chaos/test_chaos.py::d", "tests/end_to_end/test_life.py::e"]
    assert sorted([*tests, *longest], key=order_of) == [*longest[::-1], *tests[::-1]]


def test_every_file_that_uses_the_broker_is_with_the_one_worker_that_has_it(request: pytest.FixtureRequest) -> None:
    using = {item.path for item in request.session.items if BROKER_FIXTURE in getattr(item, "fixturenames", ())}
    tests = request.config.rootpath / "tests"
    assert {str(path.relative_to(tests)) for path in using} <= set(BROKER_FILES)


def test_every_test_has_an_id_of_its_own(request: pytest.FixtureRequest) -> None:
    times = Counter(item.nodeid for item in request.session.items)
    assert [test for test, number in times.items() if number > 1] == []


def test_tests_that_differ_by_name_alone_get_ids_that_differ(request: pytest.FixtureRequest) -> None:
    file = request.node.parent

    def generated(name: str) -> pytest.Function:
        return pytest.Function.from_parent(file, name=name, originalname="test_a", callobj=lambda: None)

    items: list[pytest.Item] = [generated("test_a[GET /x]"), generated("test_a[POST /x[1]]"), request.node]
    name_apart(items)
    own, here = request.node.nodeid, file.nodeid
    assert [item.nodeid for item in items] == [f"{here}::test_a[GET /x]", f"{here}::test_a[POST /x[1]]", own]
