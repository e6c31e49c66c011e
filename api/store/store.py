"""The only part of the database code that the rest of the control plane uses.

store = await SqlStore.open("sqlite:///runs/freshet.db")
store.runs       see, cursor, projected, project, get, list, and the history: generations, alpha_changes,
                 checkpoints, faults, events, records, readings, steps
store.commands   submit, pending, record_answer, get, list
store.tokens, store.audit   the same as in every process (``infra/web/store/access.py``)
"""

from api.store.commands import CommandTable
from api.store.reads import RunTables
from api.store.retention import Retention, prune
from infra.web.store.access import AccessStore
from infra.web.store.engine import Database


class SqlStore(AccessStore):
    """A database of the newest schema, with the tables of runs and commands."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.runs = RunTables(database)
        self.commands = CommandTable(database)

    async def prune(self, retention: Retention) -> int:
        """Removes the rows that need not be kept, in small transactions; returns their number."""
        return await prune(self.database, retention)
