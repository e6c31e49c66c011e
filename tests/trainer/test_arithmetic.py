import torch

from trainer.arithmetic import arithmetic_of


def test_the_arithmetic_names_what_results_depend_on() -> None:
    told = arithmetic_of(torch.device("cpu"))
    for part in (torch.__version__, f"{torch.get_num_threads()} threads", torch.backends.cpu.get_cpu_capability()):
        assert part in told
