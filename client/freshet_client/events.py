"""Server-sent events: lines become events. Nothing here reads from a connection."""

import json

from freshet_client.answers import Event


class EventParser:
    """Makes events of the lines of a stream, and remembers where to go on."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self._kind = ""
        self._id = ""
        self._data: list[str] = []

    def add(self, line: str) -> Event | None:
        """Adds a line; returns the event that it ends."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            return self._finish()
        return None

    def begin(self) -> None:
        """Forgets what was read of an event whose connection was lost."""
        self._kind = self._id = ""
        self._data = []

    def _finish(self) -> Event:
        found = Event(self._kind, self._id, json.loads("\n".join(self._data)))
        self.last_id = self._id or self.last_id
        self.begin()
        return found
