"""One client's connection, which is cut when the client keeps it and does nothing with it."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 30.0  # seconds; it is cut between one and two of them


class Connection(H11Protocol):
    """uvicorn's, which waits for ever for a request's head, and for a client that does not read its answer:
    a file descriptor each, and the whole answer. While an answer is being made, the client may wait."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self._seen = None
        self._look()

    def connection_lost(self, exc):
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self):
        """Cuts the connection if it waits for the client, as it did before, and nothing has come or gone."""
        seen, self._seen = self._seen, self._waits_for()
        if seen is not None and seen == self._seen:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(PATIENCE, self._look)

    def _waits_for(self):
        """What tells one wait for the client from another; None while it is the client who waits."""
        if self.cycle is None or self.cycle.response_complete or self.flow.write_paused:
            return self.cycle, self.transport.get_write_buffer_size()
        return None
