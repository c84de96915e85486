"""Spans as OpenTelemetry has them, and as its collector reads them from a file: OTLP's JSON encoding, one `TracesData`
a line. Ids follow from names, so that any record can be found from any other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, AttributeValue | None]
"""What is None, or no finite number, is left out: a missing reward is no reward of 0."""

INTERNAL, CLIENT = 1, 3
"""Kinds of span."""


class Ref(Struct, frozen=True):
    """By which a span is known: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


class Span(Struct, frozen=True, kw_only=True):
    """One piece of work, in unix nanoseconds. Made from a step's records, written to `traces/spans.jsonl`."""

    ref: Ref
    name: str
    start: int
    end: int
    parent: Ref | None = None  # in the same trace
    kind: int = INTERNAL
    attributes: Attributes = {}
    links: Sequence[Ref] = ()  # to spans of other traces, which this one could only come after


def trace_id(*names: object) -> str:
    return _hexadecimal(16, names)


def span_id(*names: object) -> str:
    return _hexadecimal(8, names)


def _hexadecimal(size: int, names: Sequence[object]) -> str:
    return hashlib.blake2b("\0".join(map(str, names)).encode(errors="surrogatepass"), digest_size=size).hexdigest()


def traces_data(resource: Attributes, spans: Sequence[Span]) -> bytes:
    """One line. Half characters, which JSON cannot have, become question marks."""
    scope = {"scope": {"name": "agentrl"}, "spans": [_span(span) for span in spans]}
    document = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}
    return encoded(document) + b"\n"


def encoded(document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(document))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_whole(name): _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list | tuple) else value


def _span(span: Span) -> dict[str, Any]:
    """Whole numbers of 64 bits are strings in protobuf's JSON."""
    document: dict[str, Any] = {
        "traceId": span.ref.trace_id,
        "spanId": span.ref.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
    }
    if span.parent is not None:
        document["parentSpanId"] = span.parent.span_id
    if span.links:
        document["links"] = [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links]
    return document


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items() if _is_there(value)]


def _is_there(value: AttributeValue | None) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _any_value(value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind is int:
        return {"intValue": str(value)}
    if kind is float:
        return {"doubleValue": value}
    if kind is bool:
        return {"boolValue": value}
    if isinstance(value, str):  # of an enumeration too
        return {"stringValue": str(value)}
    return {"arrayValue": {"values": [_any_value(each) for each in value]}}


class ReadSpan(Struct, frozen=True, kw_only=True):
    """A span as it is read back."""

    ref: Ref
    name: str
    start: int
    end: int
    parent_id: str
    attributes: dict[str, Any]
    links: list[Ref]


def read_line(line: bytes) -> list[ReadSpan]:
    """The spans of one line. Raises ValueError for what is no `TracesData`."""
    try:
        document = msgspec.json.decode(line)
        return [
            _read(span)
            for of_resource in document["resourceSpans"]
            for of_scope in of_resource["scopeSpans"]
            for span in of_scope["spans"]
        ]
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise ValueError(f"not a line of OTLP traces: {error!r}") from error


def _read(span: Mapping[str, Any]) -> ReadSpan:
    return ReadSpan(
        ref=Ref(span["traceId"], span["spanId"]),
        name=span["name"],
        start=int(span["startTimeUnixNano"]),
        end=int(span["endTimeUnixNano"]),
        parent_id=span.get("parentSpanId", ""),
        attributes={each["key"]: _read_value(each["value"]) for each in span.get("attributes", ())},
        links=[Ref(link["traceId"], link["spanId"]) for link in span.get("links", ())],
    )


def _read_value(value: Mapping[str, Any]) -> Any:
    [(kind, inner)] = value.items()
    if kind == "intValue":
        return int(inner)
    return [_read_value(each) for each in inner["values"]] if kind == "arrayValue" else inner
