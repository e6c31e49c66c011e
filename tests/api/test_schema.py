"""Generated requests against the whole OpenAPI document: no failure of ours, and answers as the document says."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from api.app import create_app
from tests.api.dispatcher import RUN
from tests.api.generated import check_answers, document_of, is_drawn, tried
from tests.api.serving import Served

document = document_of(create_app())


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


@document.exclude(path_regex="/events$").parametrize()
@tried
def test_answers_are_true_to_the_document_with_a_token_and_without(
    case: Any, api: Served, session: requests.Session
) -> None:
    if not is_drawn(case):
        return
    if "run" in (case.path_parameters or {}):
        case.path_parameters["run"] = RUN  # any other name is unknown
    check_answers(case, api, session)
