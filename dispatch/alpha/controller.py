"""From readings to changes of alpha: a pure function, so that a recorded run can be played back.

It does the following, in this order:

1. If the GPU is contended, exact assignment moves to the CPU, if it may (``dispatch.opt_backend`` is auto), and if the
   CPU is not contended and fast enough for a step. That costs no bytes.
2. If the place where it runs is contended, or decisions take longer than steps, alpha is halved, and set to 0 below
   1/8; but only if the time that this saves is longer than the time for the extra bytes (``give_and_take``).
3. If it is calm again, exact assignment moves back to the GPU; then alpha doubles, up to the ceiling, which is the
   policy's own alpha. It does not rise if that saved nothing compared with Heu.

Three readings in a row must agree, each threshold to leave a state is lower than the one to enter it, and two changes
are at least ten seconds apart. If an increase has to be undone, the next one waits twice as long, up to 5 minutes.
"""

from typing import Literal

import msgspec

from dispatch.alpha.readings import Readings
from dispatch.placement.assign.choices import Backend

Verdict = Literal["contended", "between", "calm"]

READINGS = 3
"""Readings in a row that must agree before anything changes."""
DWELL_SECONDS = 10.0
"""Least time between two changes, unless the settings say otherwise."""
MOST_SETBACKS = 5
"""Most setbacks that count; each doubles the time before the next increase."""
LEAST_ALPHA = 1 / 8
"""Least alpha; anything below becomes 0."""

CPU_CONTENDED = 0.35
"""Share of the time that decisions lose to others on the CPU above which it counts as contended."""
CPU_CALM = 0.2
"""Share below which it counts as calm again."""
CPU_SLOW = 3.0
"""Slowdown of the CPU's trial that counts as contention; it also shows time taken by a hypervisor, which the other
sensors do not see.
"""
CPU_USUAL = 2.0
"""Slowdown below which it is calm again."""
LEAST_PRESSURE = 0.05
"""Least pressure of the kernel, if known; with less nobody waits for a processor, whatever the other sensors say."""
LEAST_LOAD = 0.01
"""Least share of a step's busy time; decisions that take less save nothing if they are shortened."""
LATE = 1.0
"""Decision time relative to the step's busy time up to which nobody waits for a decision."""
IN_TIME = 0.5
"""Decision time below which there is time to decide more."""
GPU_TAKEN = 0.5
"""Share of the time in which kernels of other programs run above which the GPU counts as contended, if NVML can
distinguish them from the run's own.
"""
GPU_LEFT = 0.1
"""Share below which it is calm again."""
GPU_CONTENDED = 2.0
"""Slowdown of the GPU's trial that counts as contention, if NVML cannot tell, or its answer is
between the two above.
"""
GPU_CALM = 1.4
"""Slowdown below which it is calm again."""
FITS = 0.5
"""Share of a step's busy time that the CPU's trial may take if exact assignment moves there."""
LEAST_SAVED = 0.001
"""Share of Heu's cost; if exact solving at the ceiling saves less, it is not worth it."""
SAVED_DWELLS = 180
"""How long that is trusted, in least times between two changes; then alpha rises again to check."""


class Tempo(msgspec.Struct, frozen=True):
    """How fast the controller may act."""

    readings: int = READINGS
    dwell_seconds: float = DWELL_SECONDS
    """Least time between two changes: ``dispatch.alpha_dwell_seconds``."""


USUAL = Tempo()


class ControllerState(msgspec.Struct, frozen=True):
    """What the controller remembers between two readings."""

    alpha: float
    """Alpha in force."""
    ceiling: float
    """The policy's own alpha."""
    backend: Backend
    """Where exact assignment runs."""
    home: Backend
    """Where it runs if nothing is contended."""
    may_move: bool = True
    """Whether it may leave the GPU; False if a person has set the GPU."""
    contended: int = 0
    """Latest readings in a row in which the place where it runs was contended."""
    calm: int = 0
    gpu_calm: int = 0
    """Latest readings in a row in which the GPU was calm."""
    changed_at: float | None = None
    raised_at: float | None = None
    """Time of the last change, if it was an increase or a move back."""
    setbacks: int = 0
    """Increases in a row that had to be undone."""
    saved_share: float | None = None
    """What exact solving saved when the ceiling was last in force; a lower alpha may save nothing even if that does."""
    saved_at: float = 0.0


class AlphaChange(msgspec.Struct, frozen=True):
    """What applies from the next decision on, and why."""

    alpha: float
    backend: Backend
    reason: str
    readings: dict[str, float]


class GiveAndTake(msgspec.Struct, frozen=True):
    """The effect of a lower alpha, in milliseconds per step."""

    given_back: float
    """Time saved, for which steps wait for decisions, or which workers share with them."""
    lost: float
    """Time that the extra bytes take on the links."""


def control(
    state: ControllerState, readings: Readings, now: float, tempo: Tempo = USUAL
) -> tuple[ControllerState, AlphaChange | None]:
    """Processes a reading; returns the new state, and the change, if there is one."""
    if readings.busy_ms is None:
        return state, None
    state = _weigh(_count(state, readings), readings, now, SAVED_DWELLS * tempo.dwell_seconds)
    waited = float("inf") if state.changed_at is None else now - state.changed_at
    if state.contended >= tempo.readings and waited >= tempo.dwell_seconds:
        return _relieve(state, readings, now, tempo)
    if waited >= tempo.dwell_seconds * 2**state.setbacks:
        return _restore(state, readings, now, tempo)
    return state, None


def cpu_verdict(readings: Readings) -> Verdict:
    """Whether decisions lose time to others on the CPU."""
    slowdown = readings.cpu_slowdown or 1.0
    has_pressure = readings.pressure is None or readings.pressure >= LEAST_PRESSURE
    if (has_pressure and readings.cpu_contention >= CPU_CONTENDED) or slowdown >= CPU_SLOW:
        return "contended"
    is_calm = not has_pressure or readings.cpu_contention < CPU_CALM
    return "calm" if is_calm and slowdown < CPU_USUAL else "between"


def gpu_verdict(readings: Readings) -> Verdict:
    """Whether programs other than this run use the GPU: by NVML if it can tell, otherwise by how slow the trial is."""
    others = readings.gpu_others
    slowdown = readings.gpu_slowdown or 1.0
    if others is not None and not GPU_LEFT <= others < GPU_TAKEN:
        return "contended" if others >= GPU_TAKEN else "calm"
    if slowdown < GPU_CALM:
        return "calm"
    return "contended" if slowdown >= GPU_CONTENDED else "between"


def place_verdict(readings: Readings, backend: Backend) -> Verdict:
    """The verdict on the place where exact assignment runs."""
    return cpu_verdict(readings) if backend == "cpu" else gpu_verdict(readings)


def verdict(readings: Readings, backend: Backend) -> Verdict:
    """The verdict on that place, and on decisions that come too late wherever they are made."""
    load = readings.decide_load or 0.0
    if load >= LATE:
        return "contended"
    found = place_verdict(readings, backend)
    if found == "contended" and load < LEAST_LOAD:
        return "between"
    return "between" if found == "calm" and load >= IN_TIME else found


def give_and_take(readings: Readings, backend: Backend, share: float) -> GiveAndTake | None:
    """The effect of solving this share less of what is now solved exactly; None: not enough is known.

    Both are assumed to be proportional to alpha. A small alpha keeps most of what a large one saves, so this tends to
    keep it high. While decisions take less time than steps, nobody waits for them: a shorter decision then saves
    something only if workers of this run need the same contended processor or GPU.
    """
    if readings.exact_ms is None or readings.rows_ms is None or readings.saved_share is None:
        return None
    freed = share * readings.exact_ms
    waited = max(0.0, readings.decide_p95_ms - (readings.busy_ms or 0.0))
    is_shared = readings.workers_here > 0 and place_verdict(readings, backend) == "contended"
    saved = min(max(readings.saved_share, 0.0), 0.99)
    return GiveAndTake(freed if is_shared else min(freed, waited), share * readings.rows_ms * saved / (1 - saved))


def _count(state: ControllerState, readings: Readings) -> ControllerState:
    """Counts how many readings in a row agree."""
    found = verdict(readings, state.backend)
    of_gpu = gpu_verdict(readings)
    return msgspec.structs.replace(
        state,
        contended=state.contended + 1 if found == "contended" else 0,
        calm=state.calm + 1 if found == "calm" else 0,
        gpu_calm=state.gpu_calm + 1 if of_gpu == "calm" else 0,
    )


def _weigh(state: ControllerState, readings: Readings, now: float, believed_seconds: float) -> ControllerState:
    """Remembers what the ceiling saves, for as long as that is trusted."""
    if state.alpha == state.ceiling and readings.saved_share is not None:
        return msgspec.structs.replace(state, saved_share=readings.saved_share, saved_at=now)
    if now - state.saved_at > believed_seconds:
        return msgspec.structs.replace(state, saved_share=None)
    return state


def _relieve(
    state: ControllerState, readings: Readings, now: float, tempo: Tempo
) -> tuple[ControllerState, AlphaChange | None]:
    """Moves exact assignment to the CPU, or lowers alpha if that is worth it."""
    if state.alpha == 0.0:
        return state, None
    alpha = state.alpha
    backend = state.backend
    cause = _cause(readings, state.backend)
    if backend == "cuda" and state.may_move and gpu_verdict(readings) == "contended" and _fits_the_cpu(readings):
        backend = "cpu"
        trial = f"trial {readings.cpu_trial_ms:.1f} ms of a step's {readings.busy_ms:.0f} ms"
        reason = f"{cause}; exact assignment moves to the CPU, which is free ({trial})"
    else:
        alpha = halved(alpha)
        worth = give_and_take(readings, backend, share=1 - alpha / state.alpha)
        if worth is None or worth.given_back <= worth.lost:
            return state, None
        weighed = f"gives back {worth.given_back:.1f} ms a step for {worth.lost:.1f} ms more on the links"
        reason = f"{cause}; alpha falls from {state.alpha:g} to {alpha:g}, which {weighed}"
    wait = tempo.dwell_seconds * 2**state.setbacks
    is_setback = state.raised_at is not None and now - state.raised_at <= 2 * wait
    setbacks = min(MOST_SETBACKS, state.setbacks + 1) if is_setback else 0
    return _changed(state, now, AlphaChange(alpha, backend, reason, readings.figures()), setbacks)


def _restore(
    state: ControllerState, readings: Readings, now: float, tempo: Tempo
) -> tuple[ControllerState, AlphaChange | None]:
    """Moves exact assignment back to the GPU, or raises alpha."""
    figures = readings.figures()
    if state.backend != state.home and state.gpu_calm >= tempo.readings:
        reason = f"{_ease(readings, state.home)}; exact assignment moves back"
        return _changed(state, now, AlphaChange(state.alpha, state.home, reason, figures), state.setbacks)
    saved = state.saved_share
    saves = saved is None or saved >= LEAST_SAVED
    if state.calm < tempo.readings or state.alpha >= state.ceiling or not saves:
        return state, None
    alpha = min(state.ceiling, max(LEAST_ALPHA, 2 * state.alpha))
    worth = "" if saved is None else f"; exact solving saved {saved:.1%} of the cost at {state.ceiling:g}"
    reason = f"{_ease(readings, state.backend)}{worth}; alpha rises from {state.alpha:g} to {alpha:g}"
    return _changed(state, now, AlphaChange(alpha, state.backend, reason, figures), state.setbacks)


def halved(alpha: float) -> float:
    """Half of it, or 0 below the least."""
    return alpha / 2 if alpha / 2 >= LEAST_ALPHA else 0.0


def _changed(
    state: ControllerState, now: float, change: AlphaChange, setbacks: int
) -> tuple[ControllerState, AlphaChange]:
    is_raise = change.alpha > state.alpha or (change.backend == state.home != state.backend)
    after = msgspec.structs.replace(
        state,
        alpha=change.alpha,
        backend=change.backend,
        contended=0,
        calm=0,
        gpu_calm=0,
        changed_at=now,
        raised_at=now if is_raise else None,
        setbacks=setbacks,
    )
    return after, change


def _fits_the_cpu(readings: Readings) -> bool:
    """Whether the CPU is not contended, and exact assignment there takes only a part of a step."""
    if readings.cpu_trial_ms is None or readings.busy_ms is None:
        return False
    trial_ms = readings.cpu_trial_ms * (readings.cpu_slowdown or 1.0)
    return cpu_verdict(readings) != "contended" and trial_ms <= FITS * readings.busy_ms


def _cause(readings: Readings, backend: Backend) -> str:
    """What is contended, in words."""
    if place_verdict(readings, backend) == "contended":
        if backend != "cpu":
            return f"GPU is contended: {_gpu_use(readings)}"
        if readings.cpu_contention >= CPU_CONTENDED:
            return f"CPU is contended: decisions lose {readings.cpu_contention:.0%} of their time to other work"
        return f"CPU is slow: its trial takes {_times(readings.cpu_slowdown)} the usual time"
    load = readings.decide_load or 0.0
    return f"decisions are late: they take {load:.0%} of the {readings.busy_ms:.0f} ms of a step"


def _ease(readings: Readings, backend: Backend) -> str:
    """What is calm, in words."""
    if backend != "cpu":
        return f"GPU is free: {_gpu_use(readings)}"
    return f"CPU is free: decisions lose {readings.cpu_contention:.0%} of their time to other work"


def _gpu_use(readings: Readings) -> str:
    """Describes the reading by which the GPU was judged."""
    others = readings.gpu_others
    if others is not None and not GPU_LEFT <= others < GPU_TAKEN:
        return f"other programs keep it busy {others:.0%} of the time"
    return f"its trial takes {_times(readings.gpu_slowdown)} the usual time"


def _times(slowdown: float | None) -> str:
    return f"{slowdown or 1.0:.1f} times"
