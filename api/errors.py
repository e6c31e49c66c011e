"""Errors of the control plane beside those with which any request may end (``infra/web/errors.py``).

HttpError
└── JournalDiffers  500   a run's journal is not the one that the database has projected
"""

from infra.web.errors import HttpError


class JournalDiffers(HttpError):
    """A run's journal is not the one that the database has projected."""

    title = "Another journal"
