"""Pages about an API for a browser, made from its OpenAPI document; they load nothing and show nothing about any run.

They need no token: what they show is in the documentation, too.
"""

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from infra.web.rules import OPEN, OPEN_TO_ALL, SCOPE

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
DASHBOARD = "/dashboard/"
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em }
pre { padding: 0.8rem; border: 1px solid; border-radius: 4px; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid #8884 }
"""


def add_pages(app: FastAPI) -> None:
    """Adds / and /docs, which are not themselves in the OpenAPI document."""
    hidden: dict[str, Any] = {"methods": ["GET"], "include_in_schema": False, **OPEN}
    has_dashboard = any(getattr(route, "path", "") == DASHBOARD for route in app.routes)
    app.add_api_route("/", lambda: HTMLResponse(landing_page(app.openapi(), has_dashboard), headers=HEADERS), **hidden)
    app.add_api_route("/docs", lambda: HTMLResponse(reference_page(app.openapi()), headers=HEADERS), **hidden)


def landing_page(document: dict[str, Any], has_dashboard: bool = False) -> str:
    """Returns a page that says what this API is, how to get a token, and where to continue."""
    info = document["info"]
    dashboard = f'<li><a href="{DASHBOARD}">The dashboard</a>: every run, live</li>\n' if has_dashboard else ""
    return page(
        info["title"],
        f"""<p>{escape(info["description"])} Version {escape(info["version"])}.</p>
<p>Requests need a token. On the machine of this server, in the folder of the run, this makes one and shows it once:</p>
<pre>freshet token create --name NAME --scope read</pre>
<p>Send it with every request:</p>
<pre>curl -H "Authorization: Bearer TOKEN" ADDRESS/v1/…</pre>
<ul>
{dashboard}<li><a href="/docs">All operations</a>, and the scope that a token needs for each</li>
<li><code>/v1/openapi.json</code>: the same as OpenAPI, with schemas and examples; needs <code>read</code></li>
<li><a href="/healthz">/healthz</a> and <a href="/readyz">/readyz</a>: whether this server works; need no token</li>
</ul>""",
    )


def reference_page(document: dict[str, Any]) -> str:
    """Returns a page with one line for each operation."""
    rows = [
        f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation['summary'])}</td><td>{escape(_scope(operation))}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    title = f"{document['info']['title']}: operations"
    head = "<tr><th>method</th><th>path</th><th>what it does</th><th>scope</th></tr>"
    return page(title, f'<p><a href="/">Where to begin</a></p><table>{head}{"".join(rows)}</table>')


def page(title: str, body: str) -> str:
    """Returns a whole page; body: HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><h1>{escape(title)}</h1>{body}</html>'
    )


def _scope(operation: dict[str, Any]) -> str:
    scope: str = operation[SCOPE]
    return "no token" if scope == OPEN_TO_ALL else scope
