import numpy as np
import pytest

from benchmarks.simulated.keys import dense_inputs
from benchmarks.simulated.sizes import Architecture, DenseCharges, Reduce, Sizes
from trainer.config import ModelConfig
from trainer.models.size import dense_weights


def charged(sizes: Sizes, *steps: tuple[list[bool], int | None]) -> list[list[float]]:
    """By step: who has samples, and who owns the dense part."""
    charges = DenseCharges(sizes, len(steps[0][0]))
    return [charges.step(np.array(has_samples), sole).tolist() for has_samples, sole in steps]


def test_a_worker_without_samples_moves_nothing_through_a_hub() -> None:
    assert charged(Sizes(row=8, value=8, dense=40), ([True, False, True], None)) == [[10.0, 0.0, 10.0]]


def test_only_a_hub_charges_for_having_samples_and_decisions_count_one_way() -> None:
    assert [Sizes(8, 8, 40, reduce).dense_load.rows for reduce in ("hub", "ring")] == [5.0, 0.0]


def test_every_member_of_a_ring_moves_its_part_with_samples_or_not() -> None:
    sizes = Sizes(row=8, value=8, dense=40, reduce="ring")
    assert charged(sizes, ([True, False, False, True], None)) == [[2 * 3 / 4 * 40 / 8] * 4]


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_a_worker_that_is_alone_keeps_the_dense_part(reduce: Reduce) -> None:
    assert charged(Sizes(row=8, value=8, dense=40, reduce=reduce), ([True], 0)) == [[0.0]]


def test_a_sole_worker_takes_weights_and_state_once_and_gives_them_back() -> None:
    both, first, second = ([True, True], None), ([True, False], 0), ([False, True], 1)
    moved = charged(Sizes(row=8, value=8, dense=40), both, first, first, second, second, both)
    assert moved == [[10.0, 10.0], [15.0, 0.0], [0.0, 0.0], [15.0, 15.0], [0.0, 0.0], [10.0, 25.0]]


@pytest.mark.parametrize(("optimizer", "row"), [("sgd", 4 * 17), ("adagrad", 4 * 34), ("rowwise_adagrad", 4 * 19)])
def test_a_row_has_its_wide_weight_and_its_state(optimizer: str, row: int) -> None:
    sizes = Architecture(optimizer, "wdl", 26, 13).sizes(16)  # type: ignore[arg-type]
    assert (sizes.row, sizes.value) == (row, 4 * 17)


def test_the_dense_part_is_the_model_s_unless_its_bytes_are_given() -> None:
    weights = dense_weights(ModelConfig(name="dlrm"), 26, 16, 13)
    assert Architecture("sgd", "dlrm", 26, 13).sizes(16).dense == 4 * weights
    assert [Architecture("sgd", "dlrm", 26, 13, given).sizes(16).dense for given in (0, 77)] == [0, 77]


@pytest.mark.parametrize(("dataset", "inputs"), [("criteo", 13), ("synthetic", 13), ("movielens", 0)])
def test_dense_inputs_are_those_of_the_data_set(dataset: str, inputs: int) -> None:
    assert dense_inputs(dataset) == inputs
