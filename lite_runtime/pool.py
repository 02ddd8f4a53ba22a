"""Sessions kept for later: those used most recently, within a budget of bytes.

A request names the ids of its prompt and whose it is. It gets the kept session that shares the longest
beginning with the prompt, cut to that: the session itself where it is the same owner's, else a fork, which
shares its full blocks, so that another user's next turn is not lost. Whoever has taken a session gives it
back when the answer has ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .errors import EdgeKitError
from .session import BLOCK, Session, common_prefix


@dataclass
class _Kept:
    session: Session
    owner: object


class SessionPool:
    """Any thread. It holds the sessions that were given to it, not those that are in use."""

    def __init__(self, model, max_bytes: int):
        self.model = model
        self.max_bytes = max_bytes
        self._kept = []  # of _Kept, the one used most recently last
        self._lock = threading.Lock()

    def take(self, ids, owner=None) -> Session:
        """A session for the prompt `ids`: it holds a beginning of them, without the last one at least.
        It is the caller's: `give` it back, or close it. owner None is nobody: always a fork."""
        beginning = self.model.check_ids(ids)[:-1]
        with self._lock:
            best, longest = None, 0
            for kept in reversed(self._kept):
                common = common_prefix(kept.session._tokens, beginning)
                own = owner is not None and kept.owner == owner
                if common > longest or (common == longest > 0 and own and best.owner != owner):
                    best, longest = kept, common
            if best is None:
                return self.model.session()
            self._kept.remove(best)
            if owner is not None and best.owner == owner:
                session = best.session
            else:
                self._kept.append(best)
                session = best.session.fork()
        try:
            session.cut(longest)
        except BaseException:
            session.close()
            raise
        return session

    def n_cached(self, ids) -> int:
        """How many token ids at the beginning of `ids` a kept session holds at most."""
        with self._lock:
            return max((common_prefix(kept.session._tokens, ids) for kept in self._kept), default=0)

    def give(self, session: Session, owner=None) -> None:
        """Keeps `session` as the one used most recently; the caller may not use it any more. Kept ones that
        are a beginning of it are closed, and so are the oldest ones past the budget."""
        if session._handle.n_cancels:  # the flag of a cancel that came late may be up: not for the next user
            session = _renewed(session)
            if session is None:
                return
        with self._lock:
            self._keep(session, owner)

    def share(self, session: Session) -> None:
        """Keeps a fork of a session in use, for others whose prompts begin like it."""
        fork = session.fork()  # waits for a forward that runs
        with self._lock:
            self._keep(fork, None)

    def n_bytes(self) -> int:
        """Of the kept caches, in whole blocks; blocks that forks share count once."""
        with self._lock:
            return self._n_bytes()

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Closes the kept sessions."""
        with self._lock:
            kept, self._kept = self._kept, []
        for each in kept:
            each.session.close()

    def _keep(self, session, owner) -> None:
        others = [kept for kept in self._kept if kept.session is not session]
        dropped = [kept for kept in others if _is_beginning(kept.session, session)]
        self._kept = [kept for kept in others if kept not in dropped] + [_Kept(session, owner)]
        while self._kept and self._n_bytes() > self.max_bytes:
            dropped.append(self._kept.pop(0))
        for kept in dropped:
            kept.session.close()

    def _n_bytes(self) -> int:
        info = self.model.info
        block = BLOCK * info.kv_bytes_per_token
        # Keys and values as they are written, fp16 at least; an int8 cache keeps its last full block so, too.
        written = max(block, BLOCK * info.n_layers * info.n_kv_heads * info.head_dim * 2 * 2)
        shared, n_bytes = set(), 0
        for kept in self._kept:
            n_full, rest = divmod(len(kept.session), BLOCK)
            shared.update(map(id, kept.session._shared))
            n_bytes += (n_full - len(kept.session._shared)) * block + (rest > 0) * written
            n_bytes += (n_full > 0 and block < written) * written
        return n_bytes + len(shared) * block


def _renewed(session: Session):
    """A fork in place of the session, whose end this is; None if there can be none."""
    try:
        return session.fork()
    except EdgeKitError:  # closed, or no memory
        return None
    finally:
        session.close()


def _is_beginning(first, second) -> bool:
    return common_prefix(first._tokens, second._tokens) == len(first)
