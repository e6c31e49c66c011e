"""``freshet agent``: supervises the workers of one machine, for a dispatcher that runs on another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.base.errors import ProcessFailed
from infra.base.link_gbit import LinkGbit
from infra.base.parts import COMMAND
from infra.base.process import Stop
from infra.run.agent.agent import AGENT_FILE, Agent
from infra.run.folder import as_path
from infra.run.notices import Notices
from infra.run.settings import Settings, store_settings, threads_of
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.nursery import nursery_in
from infra.run.supervision.supervisor import Outcome, Supervisor

MOST_RESTARTS = 20
"""Most restarts; a dispatcher that is unavailable for some minutes does not end its workers permanently."""


@dataclass(frozen=True)
class AgentJob:
    """The job of one agent."""

    settings: Settings
    """Settings; the folder is the agent's own."""
    dispatcher: str
    """Endpoint of the dispatcher."""
    prefix: str
    """Prefix of the names of workers, which must be unique in the run."""
    links: Sequence[LinkGbit]
    """Links of each worker at the start; a downlink of 0: not given."""


def run_agent(job: AgentJob, stop: Stop, tell: Callable[[str], None]) -> Outcome:
    """Runs the workers until all have left or a stop is requested; raises ProcessFailed if one failed permanently.

    tell: called with a line for everything that an operator should know.
    """
    store_settings(job.settings)
    further = partial(remote_worker, job.settings, job.dispatcher)
    specs = [further(f"{job.prefix}{number}", link) for number, link in enumerate(job.links)]
    nursery = nursery_in(job.settings.folder, {"OMP_NUM_THREADS": str(threads_of(job.settings))})
    supervisor = Supervisor(specs, job.settings.folder, starter=nursery)
    notices = Notices(supervisor)
    at = job.settings.folder / "endpoints" / AGENT_FILE
    with Agent(supervisor, job.settings.run, at, further, job.prefix) as agent:

        def each_pass() -> None:
            agent.serve()
            for line in notices.new():
                tell(line)

        outcome = supervisor.run(stop, each_pass)
    if failed := [child.explain() for child in supervisor.children.values() if child.state == "failed"]:
        raise ProcessFailed("\n".join(failed))
    return outcome


def remote_worker(settings: Settings, dispatcher: str, name: str, link: LinkGbit) -> ProcessSpec:
    """A worker of a dispatcher on another machine; the others continue without it."""
    command = [*COMMAND, "worker", "--run", as_path(settings.folder)]
    endpoints: Path = settings.folder / "endpoints"
    return ProcessSpec(
        name,
        [*command, "--name", name, "--dispatcher", dispatcher, *link.options],
        env={"OMP_NUM_THREADS": str(threads_of(settings))},
        endpoint_file=endpoints / name,
        alive_file=endpoints / f"{name}.alive",
        restart="on_failure",
        max_restarts=MOST_RESTARTS,
        may_finish=True,
        essential=False,
    )
