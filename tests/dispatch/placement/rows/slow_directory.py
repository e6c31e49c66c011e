"""A directory written to be obviously right: dictionaries and sets, nothing clever. The oracle of property tests."""

from dataclasses import dataclass, field, replace


@dataclass
class SlowRow:
    state: str = "clean"
    holders: set[int] = field(default_factory=set)


@dataclass
class SlowSlot:
    row: int
    uses: int = 0
    last: int = 0
    mark: int = 0


@dataclass
class SlowMoves:
    """Sets of (worker, row, slot, kind), the rows settled, and those reduced on all workers, in order."""

    pushes: set[tuple[int, int, int, str]] = field(default_factory=set)
    pulls: set[tuple[int, int, int, str]] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    reduced: list[int] = field(default_factory=list)


class SlowDirectory:
    def __init__(
        self,
        capacities: list[int],
        eviction: str,
        synchronisation: str = "on_demand",
        replicas: int = 0,
        write_behind: float = 0.0,
    ) -> None:
        self.eviction = eviction
        self.synchronisation = synchronisation
        self.trained: list[int] = []
        self.rows: dict[int, SlowRow] = {}
        self.slots: list[dict[int, SlowSlot]] = [{} for _ in capacities]
        self.free = [list(range(c - replicas))[::-1] for c in capacities]
        self.capacities, self.replicas = capacities, replicas
        self.hot: dict[int, int] = {}
        """places of replicated rows"""
        self.hot_changed: set[int] = set()
        self.entering: list[int] = []
        self.leaving: list[int] = []
        self.outdated: list[list[int]] = [[] for _ in capacities]
        self.target = [1 for _ in capacities]
        self.write_behind = write_behind if synchronisation == "on_demand" else 0.0
        self.credit = [0.0 for _ in capacities]
        self.trained_at: dict[int, tuple[int, int]] = {}
        """of rows trained by one worker: the step, and the place among that worker's rows"""
        self.last_step: int | None = None
        self.masks: dict[int, int] = {}
        """of rows that have a live chunk, or had one"""

    def continue_from(self, old: "SlowDirectory", members: list[int | None]) -> list[bool]:
        """Caches of workers that stay, as they were after a flush; a size that changed starts them empty."""
        keeps = [
            was is not None and old.capacities[was] == size for was, size in zip(members, self.capacities, strict=True)
        ]
        self.rows = {number: SlowRow() for number in old.rows}
        self.masks = dict(old.masks)
        for worker, (was, kept) in enumerate(zip(members, keeps, strict=True)):
            if was is None or not kept:
                continue
            room = self.capacities[worker] - self.replicas
            self.target[worker] = old.target[was]
            self.slots[worker] = {slot: replace(held) for slot, held in old.slots[was].items() if slot < room}
            self.free[worker] = [slot for slot in self.free[worker] if slot not in self.slots[worker]]
            self.outdated[worker] = [slot for slot in old.outdated[was] if slot < room]
            for held in self.slots[worker].values():
                if was in old.rows[held.row].holders:
                    self.rows[held.row].holders.add(worker)
        return keeps

    def slot_of(self, worker: int, row: int) -> int | None:
        return next((s for s, held in self.slots[worker].items() if held.row == row), None)

    def replicate(self, rows: list[int], for_good: bool = False) -> None:
        self.leaving = sorted(set(self.hot) - set(rows))
        self.entering = sorted(set(rows) - set(self.hot))
        places = [place for place in range(self.replicas) if place not in self.hot.values()]
        self.hot |= dict(zip(self.entering, places, strict=False))
        for capacity, free in zip(self.capacities, self.free, strict=True):
            if for_good:
                free[:0] = list(range(capacity - self.replicas, capacity - len(self.hot)))[::-1]

    def hot_slots(self, worker: int) -> dict[int, int]:
        last = self.capacities[worker] - 1
        return {row: last - place for row, place in self.hot.items() if row not in self.entering}

    def _leave(self, moves: SlowMoves) -> None:
        for number in self.leaving:
            writer = self.hot[number] % len(self.slots)
            if number in self.hot_changed:
                moves.pushes.add((writer, number, self.hot_slots(writer)[number], "owned_update"))
            self.rows[number] = SlowRow()
            del self.hot[number]
        self.hot_changed -= set(self.leaving)
        self.leaving = []

    def plan(self, step: int, batch: list[list[int]], assignment: list[int]) -> SlowMoves:
        moves = SlowMoves()
        self._leave(moves)
        users: dict[int, set[int]] = {}
        ordered: list[dict[int, None]] = [{} for _ in self.slots]
        for rows, worker in zip(batch, assignment, strict=True):
            for row in rows:
                if row in self.hot:
                    moves.reduced += [] if row in moves.reduced else [row]
                    continue
                users.setdefault(row, set()).add(worker)
                ordered[worker][row] = None
        for row in self.trained:
            if self.rows[row].state != "clean":
                self._push(row, moves)
        self._enter(moves)
        self.hot_changed |= set(moves.reduced)
        for row, workers in users.items():
            self._synchronise(row, workers, moves)
        for worker, used in enumerate(ordered):
            alone_first = sorted(used, key=lambda row: len(users[row]) > 1)
            self._place(worker, alone_first, users, step, moves)
        for worker in range(len(self.slots)):
            self._write_behind(worker, set(users), moves)
        for used in ordered:
            for place, row in enumerate(sorted(used, key=lambda row: len(users[row]) > 1)):
                self.trained_at[row] = step, place
        self.last_step = step
        for row, workers in users.items():
            self.rows[row] = SlowRow("owned" if len(workers) == 1 else "split", set(workers))
        self.trained = list(users) if self.synchronisation == "full" else []
        return moves

    def reshape(self, masks: dict[int, int]) -> None:
        """Other chunks of these rows are live: nobody holds them any more."""
        self.masks |= masks
        for number in masks:
            self._drop(self.rows.setdefault(number, SlowRow()), number)

    def drop_copies(self) -> None:
        """Nobody holds any row any more; copies become outdated slot by slot."""
        for worker, slots in enumerate(self.slots):
            for slot in sorted(slots):
                if worker in self.rows[slots[slot].row].holders:
                    self._outdate(worker, slot)
        for row in self.rows.values():
            row.holders = set()

    def _drop(self, row: SlowRow, number: int) -> None:
        for worker in sorted(row.holders):
            self._outdate(worker, self._slot(worker, number))
        row.holders = set()

    def forget(self, before: int) -> list[int]:
        """Rows that were last trained before a step: nobody holds them any more, and nothing of them is pushed."""
        old = [row for row, (step, _) in self.trained_at.items() if step < before]
        forgotten = sorted(row for row in old if self.rows[row].state != "replicated")
        for number in forgotten:
            self._drop(self.rows[number], number)
            self.rows[number] = SlowRow()
            self.masks.pop(number, None)
            del self.trained_at[number]
        return forgotten

    def _write_behind(self, worker: int, used: set[int], moves: SlowMoves) -> None:
        """The longest untrained rows of this worker, within its budget; it stays a holder of them."""
        self.credit[worker] += self.write_behind * sum(puller == worker for puller, *_ in moves.pulls)
        budget = int(self.credit[worker])
        self.credit[worker] -= budget
        owned = {number for number, row in self.rows.items() if (row.state, row.holders) == ("owned", {worker})}
        idle = [row for row in owned - used if self.trained_at[row][0] != self.last_step]
        for number in sorted(idle, key=lambda row: self.trained_at[row])[:budget]:
            moves.pushes.add((worker, number, self._slot(worker, number), "owned_behind"))
            self.rows[number].state = "clean"

    def _enter(self, moves: SlowMoves) -> None:
        rows = {number: self.rows.setdefault(number, SlowRow()) for number in self.entering}
        for number, row in rows.items():
            if row.state != "clean":
                self._push(number, moves)
        for number, row in rows.items():
            for worker in sorted(row.holders):
                self._outdate(worker, self._slot(worker, number))
            self.rows[number] = SlowRow("replicated")
        self.entering = []
        for worker in range(len(self.slots)):
            moves.pulls |= {(worker, row, slot, "full") for row, slot in self.hot_slots(worker).items() if row in rows}

    def flush(self) -> SlowMoves:
        moves = SlowMoves()
        for number, place in self.hot.items():
            if number in self.hot_changed:
                writer = place % len(self.slots)
                moves.pushes.add((writer, number, self.hot_slots(writer)[number], "owned_flush"))
        self.hot_changed = set()
        for number, row in self.rows.items():
            if row.state == "owned":
                (owner,) = row.holders
                moves.pushes.add((owner, number, self._slot(owner, number), "owned_flush"))
            elif row.state == "split":
                for worker in sorted(row.holders):
                    moves.pushes.add((worker, number, self._slot(worker, number), "part_flush"))
                moves.settled.add(number)
        for worker, slots in enumerate(self.slots):
            for slot in sorted(slots):
                row = self.rows[slots[slot].row]
                if row.state == "split" and worker in row.holders:
                    self._outdate(worker, slot)
        for row in self.rows.values():
            if row.state == "split":
                row.holders = set()
            row.state = row.state if row.state == "replicated" else "clean"
        return moves

    def _slot(self, worker: int, row: int) -> int:
        slot = self.slot_of(worker, row)
        assert slot is not None
        return slot

    def _outdate(self, worker: int, slot: int) -> None:
        if slot not in self.outdated[worker]:
            self.outdated[worker].append(slot)

    def _push(self, number: int, moves: SlowMoves) -> None:
        """Full synchronisation: an owner stays a holder, part-holders do not."""
        row = self.rows[number]
        for worker in sorted(row.holders):
            slot = self._slot(worker, number)
            moves.pushes.add((worker, number, slot, "owned_update" if row.state == "owned" else "part_update"))
            if row.state == "split":
                self._outdate(worker, slot)
        if row.state == "split":
            row.holders = set()
            moves.settled.add(number)
        row.state = "clean"

    def _synchronise(self, number: int, users: set[int], moves: SlowMoves) -> None:
        row = self.rows.setdefault(number, SlowRow())
        if row.state == "owned" and row.holders == users:
            return
        for worker in sorted(row.holders):
            slot = self._slot(worker, number)
            if row.state == "owned":
                moves.pushes.add((worker, number, slot, "owned_update"))
            if row.state == "split":
                moves.pushes.add((worker, number, slot, "part_update"))
            if row.state == "split" or worker not in users:
                self._outdate(worker, slot)
        if row.state == "split":
            moves.settled.add(number)
            row.holders = set()
        row.holders &= users
        row.state = "clean"

    def _place(self, worker: int, used: list[int], users: dict[int, set[int]], step: int, moves: SlowMoves) -> None:
        missing = [row for row in used if self.slot_of(worker, row) is None]
        for row in used:
            if row not in missing:
                self._use(worker, self._slot(worker, row), step)
        for row in used:
            if row in missing:
                slot = self.free[worker].pop() if self.free[worker] else self._evict(worker, step, moves)
                self.slots[worker][slot] = SlowSlot(row)
                self._use(worker, slot, step)
            if worker not in self.rows[row].holders:
                kind = "full" if len(users[row]) == 1 else "value"
                moves.pulls.add((worker, row, self._slot(worker, row), kind))

    def _use(self, worker: int, slot: int, step: int) -> None:
        held = self.slots[worker][slot]
        held.uses, held.last, held.mark = held.uses + 1, step, self.target[worker]

    def _is_outdated(self, worker: int, slot: int, step: int) -> bool:
        held = self.slots[worker][slot]
        return worker not in self.rows[held.row].holders and held.last != step

    def _victim(self, worker: int, step: int) -> int:
        while self.outdated[worker]:
            slot = self.outdated[worker].pop()
            if self._is_outdated(worker, slot, step):
                return slot
        slots = self.slots[worker]
        idle = [slot for slot, held in slots.items() if held.last != step]
        if self.eviction == "lru":
            return min(idle, key=lambda slot: (slots[slot].last, slot))
        if self.eviction == "lfu":
            return min(idle, key=lambda slot: (slots[slot].uses, slot))
        if all(held.mark == self.target[worker] for held in slots.values()):
            self.target[worker] += 1
            for held in slots.values():
                if held.last == step:
                    held.mark = self.target[worker]
        return min(idle, key=lambda slot: (slots[slot].mark, slots[slot].uses, slot))

    def _evict(self, worker: int, step: int, moves: SlowMoves) -> int:
        slot = self._victim(worker, step)
        number = self.slots[worker].pop(slot).row
        row = self.rows[number]
        if worker in row.holders:
            row.holders.remove(worker)
            if row.state == "owned":
                moves.pushes.add((worker, number, slot, "owned_evict"))
                row.state = "clean"
            elif row.state == "split":
                moves.pushes.add((worker, number, slot, "part_evict"))
                if not row.holders:
                    moves.settled.add(number)
                    row.state = "clean"
        return slot
