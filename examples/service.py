"""A web service that answers from the newest snapshot: `uvicorn service:app`, then GET /like/postgresql?k=5."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse
from lake import packages
from pyiceberg.expressions import EqualTo

import icepuffin


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with icepuffin.open_index(packages()).follow(interval=10) as following:
        app.state.following = following
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/like/{name}")
def like(
    request: Request, name: str, k: Annotated[int, Query(ge=1, le=100)] = 5, section: str | None = None
) -> dict[str, Any]:
    """The packages that are most like `name`, itself among them."""
    # one snapshot for the query and the answer, whatever is swapped in meanwhile
    reader = request.app.state.following.reader
    rows = packages().scan(EqualTo("name", name), snapshot_id=reader.snapshot_id).to_arrow()
    if not len(rows):
        raise HTTPException(404, f"snapshot {reader.snapshot_id} has no package {name}")
    where = EqualTo("section", section) if section else None
    result = reader.search(rows["embedding"][0].as_py(), k, columns=["name", "description"], where=where)
    return {"snapshot": str(result.snapshot_id), "coverage": result.coverage, "rows": list(result)}


@app.get("/metrics")
def metrics() -> PlainTextResponse:
    """What this process's shard cache answered, as Prometheus reads it."""
    return PlainTextResponse(icepuffin.metrics(), media_type="text/plain; version=0.0.4")
