"""`icepuffin metrics`."""

import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import click

from icepuffin.orchestration.cli.session import Session, session_command

if TYPE_CHECKING:
    from icepuffin.assets.table_settings import TableSettings
    from icepuffin.ops.metrics import MetricSample


_REQUEST_SECONDS = 10.0
"""Longest wait for a client that sends, or takes, nothing"""


class _Address(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments of it
    """HOST:PORT, as (host, port)."""

    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is no address; write one such as 127.0.0.1:9464", param, ctx)
        return host, int(port)


@click.command("metrics")
@click.option("--listen", type=_Address(), metavar="HOST:PORT", help="Serve them at /metrics until stopped.")
@session_command
def command(session: Session, *, listen: tuple[str, int] | None) -> None:
    """Print metrics of every table of the settings, as Prometheus reads them: lag, recall, bytes, seconds.

    Reads metadata only, anew for each scrape. A table that cannot be read has icepuffin_table_up 0, and is named on
    stderr. With --listen, /health answers without the catalog.

    \b
    Examples:
      icepuffin metrics
      icepuffin metrics --listen 127.0.0.1:9464
    """
    if not session.settings.tables:
        raise click.ClickException(f"{session.settings_file} names no table; `icepuffin init` writes one")

    from icepuffin.ops.process.arrow_import import import_arrow

    import_arrow()
    from icepuffin.ops.metrics import exposition

    def text() -> str:
        return exposition(_samples(session))

    if listen is None:
        click.echo(text(), nl=False)
        return
    with server(listen, text) as scraped:
        click.echo(f"http://{listen[0]}:{scraped.server_port}/metrics", err=True)
        scraped.serve_forever()


def _samples(session: Session) -> "Iterator[MetricSample]":
    """The samples of all tables. A table, or a pattern, that the catalog does not answer for has none but `up`."""
    from icepuffin.ops.metrics import MetricSample

    for settings, by_pattern, unlisted in session.tables():
        if unlisted:
            click.echo(f"error: {unlisted}", err=True)
            yield MetricSample("icepuffin_table_up", {"catalog": settings.catalog, "table": settings.name}, 0)
        else:
            yield from _table_samples(session, settings, by_pattern=by_pattern)


def _table_samples(session: Session, settings: "TableSettings", *, by_pattern: bool) -> "Iterator[MetricSample]":
    from icepuffin.ops.index.upkeep.freshness import missing_ref
    from icepuffin.ops.metrics import index_samples, refused_samples, table_samples
    from icepuffin.orchestration.discovery import indexes_of, table_spec

    labels = {"catalog": settings.catalog, "table": settings.name}

    def of_indexes() -> "Iterator[MetricSample]":
        table = session.catalogs.poll(settings.catalog, settings.name)
        spec = table_spec(settings, indexes_of(table, settings, by_pattern=by_pattern))
        for index in spec.indexes:
            yield from index_samples(table, index, spec.first_ref, labels)
        yield from refused_samples(spec.left_out(table), labels)
        if spec.indexes and (missing := missing_ref(table, spec.first_ref)):
            click.echo(f"warning: {settings.name}: {missing}", err=True)

    yield from table_samples(labels, of_indexes, lambda error: click.echo(f"error: {error}", err=True))


def server(address: tuple[str, int], text: Callable[[], str]) -> ThreadingHTTPServer:
    """A server of `text`, called for each scrape of /metrics, one at a time, and of /health, which waits for none.

    Port 0 is any that is free.
    """
    from icepuffin.ops.metrics import CONTENT_TYPE

    scraping = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        """Answers a request, in a thread of its own."""

        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path == "/health":
                self._answer(HTTPStatus.OK, "ok\n")
            elif self.path == "/metrics":
                with scraping:
                    scraped = text()
                self._answer(HTTPStatus.OK, scraped)
            else:
                self._answer(HTTPStatus.NOT_FOUND, "/metrics or /health\n")

        def _answer(self, status: HTTPStatus, body: str) -> None:
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """No line for a scrape that was answered."""

    return ThreadingHTTPServer(address, Handler)
