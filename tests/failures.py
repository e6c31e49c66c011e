"""Tells what fails at once: a whole run takes long, and pytest lists failures at its end."""

import pytest


class Failures:
    """Writes the name of a failed test and the line of its error, in the process that reports them."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter: pytest.TerminalReporter | None = self._plugins.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash is not None and crash.message else ""
            reporter.write_line("")
            reporter.write_line(f"{report.when} of {report.nodeid} failed: {why}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of xdist
        config.pluginmanager.register(Failures(config), "failures")
