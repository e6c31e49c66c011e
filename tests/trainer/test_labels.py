"""Smoothing draws labels towards 1/2, in the worker as in one process; without it they are what they are."""

import torch

from trainer.labels import smoothed


def test_labels_are_drawn_towards_a_half() -> None:
    labels = torch.tensor([0.0, 1.0, torch.nan], dtype=torch.float64)
    torch.testing.assert_close(smoothed(labels, 0.1), labels.new_tensor([0.05, 0.95, torch.nan]), equal_nan=True)


def test_without_smoothing_labels_are_unchanged() -> None:
    labels = torch.tensor([0.0, 1.0])
    assert smoothed(labels, 0.0) is labels
