"""The exchange in memory: what was published is what is collected, counted by sender and receiver."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crad.federation.exchange import KEPT_ROUNDS, ByteCounter, MemoryExchange
from crad.federation.message import Message, pack, read_body

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)


def message(size):
    """A message that costs `size` bytes to send."""
    return Message(b"m", b"b" * (size - 1))


def exchange_of(messages, *, round_index=1, kind="snapshot"):
    exchange = MemoryExchange()
    for sender, content in messages.items():
        exchange.publish(round_index, sender=sender, kind=kind, message=content)
    return exchange


def collect(exchange, *peers, round_index=1, receiver=0, kind="snapshot"):
    return exchange.collect(round_index, receiver=receiver, peers=peers, kind=kind)


def test_what_was_published_is_what_is_collected():
    first, second = message(3), message(5)
    got, missing = collect(exchange_of({1: first, 2: second}), 1, 2)
    assert got == {1: first, 2: second}
    assert got[1] is first
    assert missing == []


def test_only_the_peers_asked_for_are_collected():
    got, missing = collect(exchange_of({1: message(3), 2: message(5)}), 2)
    assert list(got) == [2]
    assert missing == []


def test_missing_peers_are_named_in_the_order_asked():
    got, missing = collect(exchange_of({1: message(3)}), 9, 1, 4)
    assert list(got) == [1]
    assert missing == [9, 4]


def test_a_round_that_nobody_published_misses_everybody():
    assert collect(MemoryExchange(), 1, 2) == ({}, [1, 2])


def test_a_message_of_another_round_is_not_collected():
    assert collect(exchange_of({1: message(3)}, round_index=1), 1, round_index=2) == ({}, [1])


def test_a_message_of_another_kind_is_not_collected():
    assert collect(exchange_of({1: message(3)}, kind="generator"), 1, kind="snapshot") == ({}, [1])


def test_two_kinds_of_one_sender_stand_side_by_side():
    exchange = exchange_of({1: message(3)}, kind="snapshot")
    exchange.publish(1, sender=1, kind="generator", message=message(9))
    assert collect(exchange, 1, kind="snapshot")[0][1].payload_bytes == 3
    assert collect(exchange, 1, kind="generator")[0][1].payload_bytes == 9


def test_publishing_again_replaces_the_message():
    exchange = exchange_of({1: message(3)})
    exchange.publish(1, sender=1, kind="snapshot", message=message(7))
    assert collect(exchange, 1)[0][1].payload_bytes == 7


# --- what it costs


def test_bytes_are_counted_for_the_sender_and_the_receiver():
    exchange = exchange_of({1: message(3), 2: message(5)})
    collect(exchange, 1, 2, receiver=0)
    collect(exchange, 2, receiver=1)
    assert dict(exchange.traffic.sent) == {1: 3, 2: 10}
    assert dict(exchange.traffic.received) == {0: 8, 1: 5}


def test_publishing_alone_costs_nothing():
    exchange = exchange_of({1: message(3)})
    assert dict(exchange.traffic.sent) == dict(exchange.traffic.received) == {}


def test_a_missing_message_costs_nothing():
    exchange = exchange_of({1: message(3)})
    collect(exchange, 2)
    assert dict(exchange.traffic.sent) == dict(exchange.traffic.received) == {}


def test_counts_go_on_over_the_rounds():
    ledger = ByteCounter()
    ledger.count(sender=1, receiver=2, payload_bytes=10)
    ledger.count(sender=1, receiver=3, payload_bytes=10)
    ledger.count(sender=3, receiver=2, payload_bytes=1)
    assert dict(ledger.sent) == {1: 20, 3: 1}
    assert dict(ledger.received) == {2: 11, 3: 10}


def test_two_exchanges_do_not_share_a_ledger():
    one, other = exchange_of({1: message(3)}), MemoryExchange()
    collect(one, 1)
    assert dict(other.traffic.sent) == {}


# --- rounds


def test_the_latest_round_is_the_newest_published():
    exchange = MemoryExchange()
    assert exchange.latest() is None
    for round_index in (1, 2, 5):
        exchange.publish(round_index, sender=0, kind="snapshot", message=message(2))
        assert exchange.latest() == round_index


def test_a_straggler_of_an_older_round_does_not_turn_back_the_latest():
    exchange = exchange_of({0: message(2)}, round_index=5)
    exchange.publish(4, sender=1, kind="snapshot", message=message(2))
    assert exchange.latest() == 5


def test_collecting_a_round_does_not_make_it_the_latest():
    exchange = exchange_of({0: message(2)}, round_index=3)
    collect(exchange, 0, round_index=8)
    assert exchange.latest() == 3


def test_the_last_but_one_round_is_kept_and_older_ones_are_dropped():
    assert KEPT_ROUNDS == 2
    exchange = MemoryExchange()
    for round_index in (1, 2, 3):
        exchange.publish(round_index, sender=1, kind="snapshot", message=message(2))
    assert collect(exchange, 1, round_index=1) == ({}, [1])
    assert collect(exchange, 1, round_index=2)[1] == []
    assert collect(exchange, 1, round_index=3)[1] == []


@pytest.mark.parametrize("round_index", [2, 3])
def test_others_may_still_join_a_kept_round(round_index):
    exchange = exchange_of({1: message(2)}, round_index=3)
    exchange.publish(round_index, sender=2, kind="snapshot", message=message(2))
    assert collect(exchange, 2, round_index=round_index)[1] == []


# --- immutability


def test_published_bytes_do_not_change_when_the_model_trains_on():
    model = nn.Linear(2, 1, bias=False)
    frozen = model.weight.detach().clone()
    sent = pack(model.state_dict(), kind="snapshot", peer=1, round_index=1)
    body = bytes(sent.body)
    exchange = exchange_of({1: sent})
    with torch.no_grad():
        model.weight.sub_(1.0)  # in place, as an optimiser does it
    collected = collect(exchange, 1)[0][1]
    assert not torch.equal(model.weight, frozen)
    assert collected.body == body
    assert torch.equal(read_body(collected, sender=1, expected=model.state_dict())["weight"], frozen)


def test_a_receiver_that_changes_its_copy_changes_nobody_elses():
    weights = {"weight": torch.tensor([1.0, 2.0])}
    exchange = exchange_of({1: pack(weights, kind="snapshot", peer=1, round_index=1)})
    mine, theirs = (
        read_body(collect(exchange, 1, receiver=receiver)[0][1], sender=1, expected=weights) for receiver in (0, 2)
    )
    mine["weight"].zero_()
    again = read_body(collect(exchange, 1)[0][1], sender=1, expected=weights)
    assert theirs["weight"].tolist() == again["weight"].tolist() == [1.0, 2.0]


def test_messages_and_what_was_collected_are_separate_from_the_exchange():
    exchange = exchange_of({1: message(3)})
    got, _ = collect(exchange, 1)
    got.clear()
    assert list(collect(exchange, 1)[0]) == [1]


@EXAMPLES
@given(
    sizes=st.dictionaries(st.integers(0, 4), st.integers(1, 9), max_size=5),
    asked=st.lists(st.lists(st.integers(0, 4), unique=True), min_size=5, max_size=5),
)
def test_whatever_is_sent_is_received_and_nothing_else_is_counted(sizes, asked):
    exchange = exchange_of({sender: message(size) for sender, size in sizes.items()})
    for receiver, peers in enumerate(asked):
        got, missing = collect(exchange, *peers, receiver=receiver)
        assert sorted([*got, *missing]) == sorted(peers)
        assert exchange.traffic.received.get(receiver, 0) == sum(sizes[sender] for sender in got)
    assert sum(exchange.traffic.sent.values()) == sum(exchange.traffic.received.values())
