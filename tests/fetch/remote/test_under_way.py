"""Requests that are begun on the event loop, and given up by threads."""

import asyncio
from concurrent.futures import CancelledError

import pytest

from xarray_gpuzarr.fetch.remote.under_way import UnderWay, event_loop


def test_a_request_that_cannot_begin_spoils_no_other():
    def fail():
        raise LookupError("gone")

    async def answer():
        return 1

    replies = UnderWay().ask(event_loop("a"), [answer, fail, answer])

    assert (replies[0].result(10), replies[2].result(10)) == (1, 1)
    with pytest.raises(LookupError, match="gone"):
        replies[1].result(10)


def test_requests_that_are_given_up_while_they_begin():
    under_way = UnderWay()

    async def hang():
        under_way.give_up()  # as another thread may at this point
        await asyncio.sleep(60)

    replies = under_way.ask(event_loop("a"), [hang, hang])

    for reply in replies:
        with pytest.raises(CancelledError):
            reply.result(10)
    assert not under_way
