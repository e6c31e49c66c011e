"""What every application is assembled from."""

from collections.abc import Iterator
from inspect import iscoroutinefunction

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.app import create_app as create_api
from serving.app import create_app as create_server


def dependencies_of(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from dependencies_of(each)


@pytest.mark.parametrize("app", [create_api(), create_server()], ids=["api", "serving"])
def test_no_dependency_of_a_route_takes_a_thread(app: FastAPI) -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    calls = {each.call for route in routes for each in dependencies_of(route.dependant)}
    assert calls
    assert [call for call in calls if not iscoroutinefunction(call)] == []
