"""The dashboard: one page, its scripts and its style, served from memory; what it shows comes from the other routes.

The page is open to anyone and shows nothing by itself: every figure is a request with the token of whoever looks.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from infra.web.errors import NotFound
from infra.web.rules import OPEN

FOLDER = Path(__file__).parents[1] / "dashboard"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files that are served, by their ending."""
PAGE = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
router = APIRouter(include_in_schema=False)


class PageFile(NamedTuple):
    """One file of the page."""

    body: bytes
    kind: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """The files by name, read once. Names of requests are compared with these; a path is never built from one."""
    bodies = {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.suffix in TYPES}
    return {
        name: PageFile(body, TYPES[Path(name).suffix], f'"{sha256(body).hexdigest()[:20]}"')
        for name, body in bodies.items()
    }


@router.get("/dashboard", **OPEN)
async def redirect_to_page(request: Request) -> RedirectResponse:
    """Redirects to the address to which the page's own links are relative."""
    return RedirectResponse("/dashboard/" + (f"?{request.url.query}" if request.url.query else ""))


@router.get("/dashboard/", **OPEN)
async def read_page(request: Request) -> Response:
    return _answer(page_files()[PAGE], request)


@router.get("/dashboard/{name}", **OPEN)
async def read_page_file(name: str, request: Request) -> Response:
    found = page_files().get(name)
    if found is None:
        raise NotFound(f"the dashboard has no file {name[:64]!r}; expected one that its page names; load it again")
    return _answer(found, request)


def _answer(file: PageFile, request: Request) -> Response:
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.kind)
