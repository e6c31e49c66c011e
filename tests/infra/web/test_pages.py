import pytest

from api.app import create_app as control_plane
from infra.web.pages import landing_page, reference_page
from serving.app import create_app as server
from tests.api.serving import Served


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_are_for_anyone_and_load_nothing(api: Served, path: str) -> None:
    answer = api.ask("GET", path, token=None)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"<script" not in answer.body
    assert b"//" not in answer.body


@pytest.mark.parametrize("create_app", [control_plane, server], ids=["api", "serving"])
def test_the_reference_names_every_operation_and_its_scope(create_app: object) -> None:
    assert callable(create_app)
    document = create_app().openapi()
    page = reference_page(document)
    assert page.count("<tr><td>") == sum(map(len, document["paths"].values()))
    assert "<code>/v1/openapi.json</code></td><td>This description</td><td>read</td>" in page
    assert "freshet token create --name NAME --scope read" in landing_page(document)
    assert not {"/", "/docs"} & set(document["paths"])
