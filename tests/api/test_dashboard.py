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


def test_every_file_that_the_page_names_is_there_and_may_be_kept(api: Served) -> None:
    named = set(re.findall(r'(?:src|href)="([\w./]+)"', page_files()["index.html"].body.decode()))
    (folder,) = {name.partition("/")[0] for name in named}
    for file in page_files().values():
        named |= {f"{folder}/{name}" for name in re.findall(r'from "\./([\w.]+)"', file.body.decode())}
    assert {f"{folder}/{name}" for name in ("main.js", "uplot.js", "charts.js", "style.css")} <= named
    for name in named:
        answer = api.ask("GET", f"/dashboard/{name}", token=None)
        assert (answer.status, "immutable" in answer.headers["Cache-Control"]) == (200, True)


def test_a_file_by_the_name_of_another_release_is_not_kept(api: Served) -> None:
    assert api.ask("GET", "/dashboard/other/main.js", token=None).headers["Cache-Control"] == "no-cache"


def test_no_file_names_another_host() -> None:
    assert [name for name, file in page_files().items() if OTHER_HOST.search(file.body.decode())] == []


def test_a_file_that_has_not_changed_is_not_sent_again(api: Served) -> None:
    etag = api.ask("GET", "/dashboard/other/main.js", token=None).headers["ETag"]
    again = api.ask("GET", "/dashboard/other/main.js", token=None, If_None_Match=etag)
    assert (again.status, again.body) == (304, b"")


def test_other_files_are_not_served(api: Served) -> None:
    for name in ("none.js", "index.html", "..%2fapp.py", "uplot.LICENSE", "%00"):
        assert api.ask("GET", f"/dashboard/other/{name}", token=None).status in (400, 401, 404)


def test_the_short_address_leads_to_the_page_and_keeps_the_window(api: Served) -> None:
    answer = api.ask("GET", "/dashboard?run=r&last=900", token=None)
    assert (answer.status, b"<title>Freshet</title>" in answer.body) == (200, True)
