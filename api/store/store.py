"""The only thing the rest of the control plane sees of SQL.

store = await SqlStore.open("sqlite:///runs/freshet.db")
store.runs       see, cursor, projected, project, get, list, and the history: generations, alpha_changes,
                 checkpoints, faults, events, steps
store.commands   submit, pending, record_answer, get, list
store.tokens, store.audit   as every process has them (``infra/web/store/access.py``)
"""

from api.store.commands import CommandTable
from api.store.reads import RunTables
from api.store.retention import Retention, prune
from infra.web.store.access import AccessStore
from infra.web.store.engine import Database


class SqlStore(AccessStore):
    """A database of the newest schema, with the runs in it."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.runs = RunTables(database)
        self.commands = CommandTable(database)

    async def prune(self, retention: Retention) -> int:
        """Removes what need not be kept, in small transactions; returns the number of rows."""
        return await prune(self.database, retention)
