"""Sessions kept for later: who gets which, what they cost, and that they stay exact."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import lite_runtime
from lite_runtime.errors import UsageError
from lite_runtime.pool import SessionPool
from lite_runtime.session import BLOCK, Session, common_prefix

SYSTEM = [(5 * i * i + 1) % 300 for i in range(130)]  # two full blocks and two tokens
WRITTEN = 64 * 2 * 2 * 2 * 16 * 2  # bytes of a block: tokens, layers, keys and values, heads, dim, fp16


@pytest.fixture(scope="module", params=["f16", "int8"])
def tiny(request, native_library, tiny_nb):
    with lite_runtime.load(tiny_nb, kv_dtype=request.param) as model:
        yield model


def answer(pool, prompt, owner=None) -> tuple:
    """Runs a prompt as a server would; (the session's tokens found, the session). Held against a cold run."""
    session = pool.take(prompt, owner)
    found = session.tokens
    assert found == prompt[: len(found)] and len(found) < len(prompt)
    logits = session.forward(prompt[len(found) :])[-1]
    with pool.model.session() as cold:
        np.testing.assert_array_equal(logits, cold.forward(prompt)[-1])
    return found, session


def turn(pool, prompt, owner=None) -> int:
    """How many tokens of the prompt were in the cache."""
    found, session = answer(pool, prompt, owner)
    pool.give(session, owner)
    return len(found)


def test_common_prefix():
    pairs = (([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 3], 1), ([1, 2, 3], [1, 2], 2), ([2], [1], 0))
    for a, b, n in pairs:
        assert common_prefix(a, b) == n


def test_an_owner_goes_on_with_the_session_itself(pool):
    prompt = [*SYSTEM, 1, 2, 3]
    assert turn(pool, prompt, "ann") == 0
    kept = pool._kept[-1].session
    found, session = answer(pool, [*prompt, 4, 5], "ann")
    assert session is kept and len(found) == len(prompt) and len(pool) == 0
    pool.give(session, "ann")
    assert turn(pool, [*prompt, 4, 5], "ann") == len(prompt) + 1  # asked again: one token is an input
    assert len(pool) == 1


def test_others_get_a_fork_and_leave_it_as_it_was(pool):
    assert turn(pool, [*SYSTEM, 1, 2, 3], "ann") == 0
    assert turn(pool, [*SYSTEM, 9, 9], "bob") == len(SYSTEM)
    assert turn(pool, [*SYSTEM, 1, 7], None) == len(SYSTEM) + 1
    assert turn(pool, [*SYSTEM, 1, 2, 3, 4], "ann") == len(SYSTEM) + 3
    assert turn(pool, [*SYSTEM, 9, 9, 1], "bob") == len(SYSTEM) + 2
    assert turn(pool, [250, 251], "eve") == 0
    assert len(pool) == 4


def test_the_longest_beginning_wins_and_the_own_one_among_equals(pool):
    turn(pool, [*SYSTEM, 1], "ann")
    turn(pool, [*SYSTEM, 2], "bob")
    found, session = answer(pool, [*SYSTEM, 3], "ann")
    assert len(found) == len(SYSTEM) and [kept.owner for kept in pool._kept] == ["bob"]
    pool.give(session, "ann")
    assert turn(pool, [*SYSTEM, 2, 8], "ann") == len(SYSTEM) + 1  # bob's goes further
    assert sorted(kept.owner for kept in pool._kept) == ["ann", "ann"]  # and is the beginning of this one now


def n_bytes(model, full: int, begun: int, sessions: int) -> int:
    """Of so many full and begun blocks. In int8 each session keeps its last full block in fp16, too."""
    if model.info.kv_bytes_per_token * BLOCK == WRITTEN:
        return (full + begun) * WRITTEN
    return full * BLOCK * model.info.kv_bytes_per_token + (begun + sessions) * WRITTEN


def test_shared_blocks_count_once(pool):
    assert pool.n_bytes() == 0
    turn(pool, [*SYSTEM, 1], "ann")
    assert pool.n_bytes() == n_bytes(pool.model, 2, 1, 1)
    turn(pool, [*SYSTEM, *[2] * 70], "bob")  # shares two blocks, has two of its own
    assert pool.n_bytes() == n_bytes(pool.model, 3, 2, 2)
    turn(pool, [*SYSTEM[:100], 3], "eve")  # shares one
    assert pool.n_bytes() == n_bytes(pool.model, 3, 3, 3)
    turn(pool, [*SYSTEM, *[2] * 70, 4], "joe")  # shares three of bob's, who is its beginning and goes
    assert pool.n_bytes() == n_bytes(pool.model, 3, 3, 3)


def test_a_cut_gives_up_what_was_shared(pool):
    turn(pool, SYSTEM, "ann")
    session = pool.take([*SYSTEM, 1], "bob")
    session.cut(10)
    session.forward(SYSTEM[10:])  # the same tokens in blocks of its own
    pool._kept[0].session.forward([7])  # so that it is no beginning of the other
    pool.give(session, "bob")
    assert pool.n_bytes() == n_bytes(pool.model, 4, 2, 2)


def test_the_least_recently_used_go_first(tiny):
    pool = SessionPool(tiny, n_bytes(tiny, 2, 3, 2))
    turn(pool, [1] * 65, "ann")
    turn(pool, [2] * 65, "bob")
    turn(pool, [*[1] * 65, 9], "ann")
    dropped = pool._kept[0].session
    turn(pool, [3] * 65, "eve")
    assert [kept.owner for kept in pool._kept] == ["ann", "eve"]
    assert pool.n_bytes() == n_bytes(tiny, 2, 2, 2)
    with pytest.raises(UsageError, match="closed"):
        dropped.forward([1])
    assert turn(pool, [7] * 700, "joe") == 0  # alone above the budget: not kept, and all others went before
    assert (len(pool), pool.n_bytes()) == (0, 0)


def test_being_forked_from_counts_as_use(tiny):
    pool = SessionPool(tiny, n_bytes(tiny, 2, 3, 3))
    turn(pool, [1] * 65, "ann")
    turn(pool, [2] * 65, "bob")
    turn(pool, [*[1] * 64, 9, 9], "eve")  # of ann's: one block shared, one of its own
    turn(pool, [3] * 65, "joe")
    assert [kept.owner for kept in pool._kept] == ["ann", "eve", "joe"]
    pool.close()


def test_given_twice_and_empty_ones(pool):
    session = pool.take([1, 2, 3], "ann")
    session.forward([1, 2, 3])
    pool.give(session, "ann")
    pool.give(session, "ann")
    assert len(pool) == 1
    assert turn(pool, [1, 2, 3, 4], "ann") == 3
    pool.give(pool.model.session(), "bob")
    turn(pool, [9, 9], "eve")
    assert sorted(kept.owner for kept in pool._kept) == ["ann", "eve"]


@pytest.mark.parametrize("owner, n_left", [("ann", 0), ("bob", 1)])
def test_a_session_that_cannot_be_cut_is_closed(pool, monkeypatch, owner, n_left):
    turn(pool, [*SYSTEM, 1], "ann")
    seen = []

    def cut(session, _length):
        seen.append(session)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Session, "cut", cut)
        with pytest.raises(MemoryError):
            pool.take([*SYSTEM, 2], owner)
    with pytest.raises(UsageError, match="closed"):
        seen[0].forward([1])
    assert len(pool) == n_left
    assert turn(pool, [*SYSTEM, 2], owner) == n_left * len(SYSTEM)


def test_a_session_in_use_is_shared(pool):
    session = pool.take([*SYSTEM, 1], "ann")
    session.forward([*SYSTEM, 1])
    pool.share(session)
    assert turn(pool, [*SYSTEM, 2], "bob") == len(SYSTEM)
    session.forward([7])
    pool.give(session, "ann")
    assert turn(pool, [*SYSTEM, 1, 7, 8], "ann") == len(SYSTEM) + 2


def test_many_threads(tiny):
    """Users with a common system prompt, a small budget: every answer is a cold run's."""
    pool = SessionPool(tiny, n_bytes(tiny, 10, 4, 4))
    problems = []

    def user(name):
        rng = random.Random(name)
        history = list(SYSTEM)
        try:
            for _ in range(12):
                history += [rng.randrange(300) for _ in range(rng.randrange(1, 60))]
                found, session = answer(pool, history, rng.choice((name, name, None)))
                if rng.random() < 0.2:
                    pool.share(session)
                pool.give(session, name)
                assert pool.n_bytes() <= pool.max_bytes
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=user, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not problems and not any(thread.is_alive() for thread in threads)
    pool.close()
    assert len(pool) == 0
