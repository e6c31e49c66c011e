"""Errors of the control plane, in addition to those that any request may raise (``infra/web/errors.py``).

HttpError
└── JournalDiffers  500   a run's journal is not the one that was projected into the database
"""

from infra.web.errors import HttpError


class JournalDiffers(HttpError):
    """A run's journal is not the one that was projected into the database."""

    title = "Another journal"
