"""Generated requests against the OpenAPI document of serving: no failure of ours, and answers as the document says."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from serving.app import create_app
from tests.api.generated import check_answers, document_of, is_drawn, tried
from tests.api.serving import Served

document = document_of(create_app())


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


@document.parametrize()
@tried
def test_answers_are_true_to_the_document_with_a_token_and_without(
    case: Any, server: Served, session: requests.Session
) -> None:
    if is_drawn(case):
        check_answers(case, server, session)
