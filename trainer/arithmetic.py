"""What the bits of a worker's results depend on, besides its orders and settings."""

import torch

MOST_CHARACTERS = 200
"""Most characters of it in a message."""


def arithmetic_of(device: torch.device) -> str:
    """torch's version, the kind of device and, on a CPU, threads and the instructions that torch chose."""
    if device.type == "cuda":
        where = f"cuda {torch.version.cuda}, {torch.cuda.get_device_name(device)}"
    else:
        where = f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    return f"torch {torch.__version__}, {where}"[:MOST_CHARACTERS]
