"""What the errors of clients say of a request: the status of an answer, or that there was none."""

from __future__ import annotations

import re

RANGE_NOT_SATISFIABLE = 416
_OBSTORE = re.compile(
    # An address has no blanks, so no name in it can be taken for what follows.
    r"Generic \w+ error: (?:Error performing [A-Z]+ \S+ in \S+"
    r"(?:, after \d+ retries, max_retries: \d+, retry_timeout: \S+)? +- )?"
    r"(?:Server returned non-2xx status code: (?P<status>\d{3})\b|HTTP error: )"
)
"""How the text of obstore's errors begins, which bear nothing else, if a server or the way to it has failed."""
_OBSTORE_STATUS = {"PermissionDeniedError": 403, "UnauthenticatedError": 401}
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
"""Errors of clients that not everyone has, by their names: timeouts, and connections that failed or broke off."""


def http_status(err: BaseException) -> int | None:
    """Return the HTTP status that an error or its cause bears, as the errors of the common clients do."""
    response = getattr(err, "response", None)
    said = [getattr(err, name, None) for name in ("status", "status_code", "code")]  # aiohttp, Azure's, Google's
    said.append(getattr(response, "status_code", None))  # requests'
    if isinstance(response, dict):  # botocore's
        said.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    if type(err).__module__ == "obstore.exceptions":
        match = _OBSTORE.match(str(err))
        said.append(int(match["status"]) if match and match["status"] else _OBSTORE_STATUS.get(type(err).__name__))
    for status in said:
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None if err.__cause__ is None else http_status(err.__cause__)


def is_unanswered(err: BaseException) -> bool:
    """Whether an error or its cause says that there was no answer, or that it broke off."""
    if isinstance(err, TimeoutError | ConnectionError):
        return True
    if not _UNANSWERED.isdisjoint(f"{kind.__module__}.{kind.__qualname__}" for kind in type(err).__mro__):
        return True
    match = _OBSTORE.match(str(err)) if type(err).__module__ == "obstore.exceptions" else None
    if match is not None and match["status"] is None:
        return True
    return err.__cause__ is not None and is_unanswered(err.__cause__)


def is_final(err: BaseException) -> bool:
    """Whether a client has given up a request: it was not answered, or with a status that is an error.

    Its retries are spent then, and nobody is to ask again.
    """
    status = http_status(err)
    return is_unanswered(err) or (status is not None and status != RANGE_NOT_SATISFIABLE)
