"""The dashboard: one page, its scripts and its style, served from memory; what it shows comes from the other routes.

The page is open to anyone and shows nothing by itself: every figure is a request with the token of whoever looks.
"""

import re
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
NAMED = re.compile(rb'(src|href)="([\w.]+)"')
"""A file that the page names."""
router = APIRouter(include_in_schema=False)


class PageFile(NamedTuple):
    """One file of the page."""

    body: bytes
    kind: str
    etag: str
    folder: str
    """In which it may be kept for good; empty: in none."""


@cache
def page_files() -> dict[str, PageFile]:
    """The files by name, read once. Names of requests are compared with these; a path is never built from one.

    The page names the others in a folder that is called by what is in all of them, so a browser that has them once asks
    for none of them again until they change.
    """
    bodies = {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in TYPES}
    folder = _digest(b"".join(bodies.values()))
    bodies[PAGE] = NAMED.sub(rf'\1="{folder}/\2"'.encode(), bodies[PAGE])
    return {
        name: PageFile(body, TYPES[Path(name).suffix], f'"{_digest(body)}"', "" if name == PAGE else folder)
        for name, body in bodies.items()
    }


def _digest(body: bytes) -> str:
    return sha256(body).hexdigest()[:20]


@router.get("/dashboard", **OPEN)
async def redirect_to_page(request: Request) -> RedirectResponse:
    """Redirects to the address to which the page's own links are relative."""
    return RedirectResponse("/dashboard/" + (f"?{request.url.query}" if request.url.query else ""))


@router.get("/dashboard/", **OPEN)
async def read_page(request: Request) -> Response:
    return _answer(page_files()[PAGE], request)


@router.get("/dashboard/{folder}/{name}", **OPEN)
async def read_page_file(folder: str, name: str, request: Request) -> Response:
    found = page_files().get(name)
    if found is None or name == PAGE:
        raise NotFound(f"the dashboard has no file {name[:64]!r}; expected one that its page names; load it again")
    return _answer(found, request, is_kept=folder == found.folder)


def _answer(file: PageFile, request: Request, is_kept: bool = False) -> Response:
    headers = {
        "ETag": file.etag,
        "Cache-Control": "public, max-age=31536000, immutable" if is_kept else "no-cache",
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.kind)
