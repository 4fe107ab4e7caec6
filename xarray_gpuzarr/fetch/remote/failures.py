"""Interpretation of the errors of clients: the HTTP status of the answer, or that there was no answer."""

from __future__ import annotations

import re

RANGE_NOT_SATISFIABLE = 416
_OBSTORE = re.compile(
    # An address has no blanks, so nothing in it can match the text after it.
    r"Generic \w+ error: (?:Error performing [A-Z]+ \S+ in \S+"
    r"(?:, after \d+ retries, max_retries: \d+, retry_timeout: \S+)? +- )?"
    r"(?:Server returned non-2xx status code: (?P<status>\d{3})\b|HTTP error: )"
)
"""Beginning of the text of obstore's errors about a server or a connection. They have no attributes to look at."""
_OBSTORE_STATUS = {"PermissionDeniedError": 403, "UnauthenticatedError": 401}
"""HTTP statuses for errors of obstore, by the names of their classes, if the text names no status."""
_UNANSWERED = {
    "aiohttp.client_exceptions.ClientConnectionError",
    "aiohttp.client_exceptions.ClientPayloadError",
    "azure.core.exceptions.ServiceRequestError",
    "azure.core.exceptions.ServiceResponseError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
}
"""Names of errors for timeouts and broken connections. The libraries that raise them are optional."""


def http_status(err: BaseException) -> int | None:
    """Return the HTTP status of an error of the common clients, or of its cause; None if there is none."""
    response = getattr(err, "response", None)
    candidates = [getattr(err, name, None) for name in ("status", "status_code", "code")]  # aiohttp, Azure, Google
    candidates.append(getattr(response, "status_code", None))  # requests
    if isinstance(response, dict):  # botocore
        candidates.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    if type(err).__module__ == "obstore.exceptions":
        match = _OBSTORE.match(str(err))
        if match and match["status"]:
            candidates.append(int(match["status"]))
        else:
            candidates.append(_OBSTORE_STATUS.get(type(err).__name__))
    for status in candidates:
        if isinstance(status, int) and 100 <= status < 600:  # such attributes of other errors may be anything
            return status
    return None if err.__cause__ is None else http_status(err.__cause__)


def is_unanswered(err: BaseException) -> bool:
    """Whether an error or its cause means that there was no answer, or that the connection broke."""
    if isinstance(err, TimeoutError | ConnectionError):
        return True
    if not _UNANSWERED.isdisjoint(f"{kind.__module__}.{kind.__qualname__}" for kind in type(err).__mro__):
        return True
    if type(err).__module__ == "obstore.exceptions":
        match = _OBSTORE.match(str(err))
        if match is not None and match["status"] is None:
            return True
    return err.__cause__ is not None and is_unanswered(err.__cause__)


def is_final(err: BaseException) -> bool:
    """Whether a client has given up on a request, because there was no answer, or one with an error status.

    The client has then made all its retries, so the request must not be repeated.
    """
    status = http_status(err)
    # With RANGE_NOT_SATISFIABLE, the server has answered: the object ends before the requested range.
    return is_unanswered(err) or (status is not None and status != RANGE_NOT_SATISFIABLE)
