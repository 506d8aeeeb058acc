"""The part of GCS's XML API that fake-gcs-server lacks, in front of it: `python -m tests.services.gcs_xml PORT STATE`.

obstore writes by the XML API. Here such a write becomes a request of the JSON API, and the server itself decides on the
condition. It is a process of its own, so that clients which keep the interpreter's lock while they wait can be tried.
"""

import json
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tests.services.forwarding import Answer, Request, forward, serving

_JSON_API = ("/storage/", "/upload/", "/download/", "/batch/", "/_internal/")
_META = "x-goog-meta-"
_uploads: dict[str, tuple[Request, dict[int, bytes]]] = {}
"""Multipart uploads that are not complete: the first request, and parts by their number"""


@dataclass(frozen=True)
class _State:
    uri: str
    upstream: str
    page: int
    """Objects of one answer to a listing"""
    tokens: Mapping[str, float] | None
    """Tokens that are good, with the time at which they expire; None: any is"""

    def refuses(self, request: Request) -> bool:
        header = next((value for key, value in request.headers.items() if key.lower() == "authorization"), "")
        return self.tokens is not None and self.tokens.get(header.removeprefix("Bearer "), 0.0) <= time.time()


def _answer(state: _State, request: Request) -> Answer:
    """https://docs.cloud.google.com/storage/docs/xml-api/reference-methods."""
    if state.refuses(request):
        return Answer(401, (("Content-Type", "text/plain"),), b"Invalid Credentials")
    place = urlsplit(request.path)
    bucket, _, name = unquote(place.path.lstrip("/")).partition("/")
    query = {key: values[0] for key, values in parse_qs(place.query, keep_blank_values=True).items()}
    kept = {key: value for key, value in request.headers.items() if key.lower() != "host"}
    request = replace(request, headers={**kept, "Host": urlsplit(state.uri).netloc})  # the server goes by it
    if place.path.startswith(_JSON_API) or not bucket:
        return forward(state.upstream, request)
    if not name and request.method == "GET":
        return _listing(state, bucket, query)
    if request.method in ("PUT", "POST") or "uploadId" in query:
        return _written(state, bucket, name, query, request)
    return forward(state.upstream, request)


def _written(state: _State, bucket: str, name: str, query: Mapping[str, str], request: Request) -> Answer:
    source = next((value for key, value in request.headers.items() if key.lower() == "x-goog-copy-source"), None)
    if source is not None:
        return _copied(state, unquote(source), bucket, name, request)
    if "uploads" in query or "uploadId" in query:
        return _multipart(state, bucket, name, query, request)
    return _inserted(state, bucket, name, request)


def _multipart(state: _State, bucket: str, name: str, query: Mapping[str, str], request: Request) -> Answer:
    if "uploads" in query:
        number = uuid.uuid4().hex
        _uploads[number] = request, {}
        return _xml(f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
    if "partNumber" in query:
        _uploads[query["uploadId"]][1][int(query["partNumber"])] = request.body
        return Answer(200, (("ETag", f'"{query["partNumber"]}"'),))
    first, parts = _uploads.pop(query["uploadId"])
    if request.method == "DELETE":
        return Answer(204)
    whole = replace(first, body=b"".join(parts[number] for number in sorted(parts)))
    done = _inserted(state, bucket, name, whole)
    result = _xml('<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
    return result if done.status == 200 else done


def _copied(state: _State, source: str, bucket: str, name: str, request: Request) -> Answer:
    """The server's own copy ignores conditions, so it is a read and a conditional write."""
    from_bucket, _, from_name = source.lstrip("/").partition("/")
    path = f"/storage/v1/b/{from_bucket}/o/{quote(from_name, safe='')}"
    described, content = _json(state, "GET", path), _json(state, "GET", f"{path}?alt=media")
    if content.status != 200:
        return content
    kept = {key: value for key, value in request.headers.items() if key.lower().startswith("x-goog-if")}
    metadata = json.loads(described.body).get("metadata", {})
    headers = {**kept, **{f"{_META}{key}": value for key, value in metadata.items()}}
    return _inserted(state, bucket, name, replace(request, headers=headers, body=content.body))


def _inserted(state: _State, bucket: str, name: str, request: Request) -> Answer:
    headers = {key.lower(): value for key, value in request.headers.items()}
    metadata = {key.removeprefix(_META): value for key, value in headers.items() if key.startswith(_META)}
    described = json.dumps({"name": name, "metadata": metadata}).encode()
    body = b"--cut\r\nContent-Type: application/json\r\n\r\n" + described
    body += b"\r\n--cut\r\nContent-Type: application/octet-stream\r\n\r\n" + request.body + b"\r\n--cut--\r\n"
    condition = headers.get("x-goog-if-generation-match")
    query = {"uploadType": "multipart", **({"ifGenerationMatch": condition} if condition else {})}
    path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
    done = _json(state, "POST", path, body, "multipart/related; boundary=cut")
    return Answer(200, (("ETag", '"1"'), ("x-goog-generation", "1"))) if done.status == 200 else done


def _listing(state: _State, bucket: str, query: Mapping[str, str]) -> Answer:
    fields = {"prefix": query.get("prefix", ""), "maxResults": str(state.page)}
    if token := query.get("continuation-token"):
        fields["pageToken"] = token
    answer = _json(state, "GET", f"/storage/v1/b/{bucket}/o?{urlencode(fields)}")
    if answer.status != 200:
        return answer
    document = json.loads(answer.body)
    contents = "".join(
        f"<Contents><Key>{escape(item['name'])}</Key><LastModified>{item['updated']}</LastModified>"
        f'<ETag>"1"</ETag><Size>{item["size"]}</Size></Contents>'
        for item in document.get("items", [])
    )
    following = document.get("nextPageToken", "")
    more = f"<NextContinuationToken>{escape(following)}</NextContinuationToken>" if following else ""
    return _xml(f"<ListBucketResult>{contents}{more}</ListBucketResult>")


def _xml(text: str) -> Answer:
    return Answer(200, (("Content-Type", "application/xml"),), f"<?xml version='1.0'?>{text}".encode())


def _json(state: _State, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Answer:
    return forward(
        state.upstream, Request(method, path, {"Content-Type": kind, "Content-Length": str(len(body))}, body)
    )


def main(port: int, state: Path) -> None:
    """Serve until the process is ended. What the file says is valid from the next request on."""

    def answer(request: Request) -> Answer:
        result = _answer(_State(**json.loads(state.read_text())), request)
        if result.status == 401:
            with state.with_suffix(".refused").open("a") as refusals:
                refusals.write(f"{request.method} {request.path}\n")
        return result

    with serving(answer, port):
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
