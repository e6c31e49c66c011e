import pytest

from dispatch.placement.capacity.compute import ComputeTimes


def compute(fixed: float, each: float, samples: list[int]) -> ComputeTimes:
    times = ComputeTimes(2)
    for count in samples:
        times.add(0, count, fixed + each * count)
    return times


def test_before_anything_is_measured_compute_takes_no_time() -> None:
    times = ComputeTimes(2)
    assert (times.fixed_n.tolist(), times.sample_n.tolist()) == ([0.0, 0.0], [0.0, 0.0])


def test_a_worker_that_has_not_been_measured_is_taken_for_one_of_the_others() -> None:
    assert compute(0.0, 0.001, [10] * 5).sample_n.tolist() == pytest.approx([0.001, 0.001])


def test_while_samples_do_not_vary_all_time_is_that_of_samples() -> None:
    times = compute(0.01, 0.001, [10] * 50)
    assert times.fixed_n[0] == 0.0
    assert times.sample_n[0] == pytest.approx(0.002)


def test_the_fixed_part_is_found_where_samples_vary_and_kept_where_they_no_longer_do() -> None:
    varied = [10, 90] * 30
    times = compute(0.05, 0.001, varied)
    assert times.fixed_n[0] == pytest.approx(0.05, rel=0.1)
    assert times.sample_n[0] == pytest.approx(0.001, rel=0.1)
    steady = compute(0.05, 0.001, varied + [50] * 200)
    assert steady.fixed_n[0] == pytest.approx(0.05, rel=0.2)
    assert steady.fixed_n[1] == 0.0


def test_compute_in_proportion_to_samples_has_no_fixed_part() -> None:
    times = compute(0.0, 0.001, [10, 90] * 30)
    assert times.fixed_n[0] == pytest.approx(0.0, abs=1e-9)
    assert times.sample_n[0] == pytest.approx(0.001)


def test_a_worker_alone_is_expected_to_take_what_it_took_lately() -> None:
    times = compute(0.0, 0.001, [10] * 5)
    assert times.undisturbed_sample_n[0] == pytest.approx(0.001)
    for _ in range(20):
        times.add(0, 10, 0.1, is_alone=True)
    assert times.undisturbed_sample_n[0] == pytest.approx(0.01, rel=0.05)
    assert times.undisturbed_sample_n[1] == pytest.approx(0.001), "of others the fastest step counts"


def test_a_worker_alone_whose_steps_become_faster_has_lost_nothing() -> None:
    times = ComputeTimes(2)
    for seconds in (0.3, 0.009, 0.009, 0.009, 0.025, 0.001):  # from a captured graph on, steps are fast
        times.add(0, 10, seconds, is_alone=True)
    assert times.undisturbed_sample_n.tolist() == [0.0001, 0.0001]


def test_a_single_step_that_takes_long_does_not_make_a_worker_slower() -> None:
    times = ComputeTimes(2)
    for seconds in (0.3, 0.002, 0.002, 0.025):  # the last one captures a graph, on a GPU
        times.add(0, 10, seconds, is_alone=True)
    assert times.undisturbed_sample_n.tolist() == [0.0002, 0.0002], "others are taken to be like it"
