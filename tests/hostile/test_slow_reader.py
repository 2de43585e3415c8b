"""An answer that the other side takes slowly arrives, as long as something moves."""

import asyncio
from types import SimpleNamespace

import h11

from tacit.apps.listener import Answer, Connection, Limits


class Slow:
    """A writer whose other side takes 64 KiB in a hundredth of a second."""

    def __init__(self):
        self.got, self.waiting = bytearray(), 0

    def write(self, data):
        self.got += data
        self.waiting += len(data)

    async def drain(self):
        seconds, self.waiting = self.waiting / (64 << 10) / 100, 0
        await asyncio.sleep(seconds)


def answered(content, pause):
    """Send an answer to a writer that is slow, and return what it got."""
    writer = Slow()
    listener = SimpleNamespace(limits=Limits(pause=pause))
    connection = Connection(listener, None, writer, "127.0.0.1")
    connection._http.receive_data(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    connection._http.next_event()
    asyncio.run(connection._send(Answer(200, content)))
    return writer.got


def test_time_is_counted_while_nothing_moves():
    content = bytes(range(256)) * (12 << 10)  # 3 MiB: half a second in all
    got = answered(content, pause=0.3)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    client.receive_data(bytes(got))
    assert client.next_event().status_code == 200
    body = bytearray()
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert body == content


def test_an_answer_without_content_has_a_head():
    assert b"content-length: 0" in answered(b"", pause=0.3).lower()
