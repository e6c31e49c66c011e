"""When keys are forgotten: those that no sample has had for so many steps.

They are looked for only now and then, because that reads the last step of every row: a key is forgotten at most a
sixteenth later than it could be. Each decision records the step before which keys were last used, so that it can be
repeated whatever the settings are by then.
"""

PARTS = 16
"""How often keys are looked for in the time after which they are forgotten."""


def forget_before(step: int, expire_steps: int) -> int:
    """The step since which a key must have been used to be known in this one; 0: none is forgotten.

    expire_steps: steps after which a key is forgotten; 0: never.
    """
    every = max(1, expire_steps // PARTS)
    is_due = expire_steps > 0 and step > expire_steps and step % every == 0
    return step - expire_steps if is_due else 0
