"""The files of the dashboard as they are served; in a browser they are tried in tests/end_to_end."""

import re

from api.routes.dashboard import page_files
from tests.api.serving import Served

OTHER_HOST = re.compile(r"(?:src|href|url|fetch|import)\W{1,3}(?:https?:)?//(?!www\.w3\.org)")


def test_the_page_is_open_to_anyone_under_a_strict_policy(api: Served) -> None:
    answer = api.ask("GET", "/dashboard/", token=None)
    policy = answer.headers["Content-Security-Policy"]
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_every_file_that_the_page_names_is_there(api: Served) -> None:
    named = set(re.findall(r'(?:src|href)="([\w.]+)"', page_files()["index.html"].body.decode()))
    for file in page_files().values():
        named |= set(re.findall(r'from "\./([\w.]+)"', file.body.decode()))
    assert {"main.js", "uplot.js", "charts.js", "style.css"} <= named
    for name in named:
        assert api.ask("GET", f"/dashboard/{name}", token=None).status == 200


def test_no_file_names_another_host() -> None:
    assert [name for name, file in page_files().items() if OTHER_HOST.search(file.body.decode())] == []


def test_a_file_that_has_not_changed_is_not_sent_again(api: Served) -> None:
    etag = api.ask("GET", "/dashboard/main.js", token=None).headers["ETag"]
    again = api.ask("GET", "/dashboard/main.js", token=None, If_None_Match=etag)
    assert (again.status, again.body) == (304, b"")


def test_other_files_are_not_served(api: Served) -> None:
    for name in ("none.js", "..%2fapp.py", "uplot.LICENSE", "%00"):
        assert api.ask("GET", f"/dashboard/{name}", token=None).status in (400, 401, 404)


def test_the_short_address_leads_to_the_page_and_keeps_the_window(api: Served) -> None:
    answer = api.ask("GET", "/dashboard?run=r&last=900", token=None)
    assert (answer.status, b"<title>Freshet</title>" in answer.body) == (200, True)
