"""Workloads of group members, while their coordinator is measured.

    python -m bench.group_loads PORT WORK [argument …]      WORK is one of those in `WORKS`

It runs in a separate process, started by `bench.groups`. It prints `ready`, waits for a line, works, and
prints its figures as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from bench.measure import quantile
from bench.members import (
    CONSUMER_DESCRIBE,
    HEARTBEAT,
    HEARTBEAT_S,
    LIMIT_S,
    OFFSET_COMMIT,
    ClassicGroup,
    ClassicMember,
    ConsumerMember,
    Lines,
    NotAnswered,
    frame,
    is_settled,
    make_groups,
)
from ottla.wire.decode import decode_response


def go() -> None:
    """Everything is prepared: the parent process starts its measurement."""
    print("ready", flush=True)
    sys.stdin.readline()


def settle_classic(lines: Lines, group_id: str, topic: str, count: str) -> dict[str, float]:
    """This many members join a group at once, until all have an assignment of the same generation."""
    group = ClassicGroup(group_id, int(count), topic)
    lines.find_coordinator(group_id)
    connected = [lines.connect() for _ in range(group.size)]
    go()
    begin = time.perf_counter()
    members = [ClassicMember(line, group, HEARTBEAT_S) for line in connected]

    def tick(now: float) -> None:
        for member in members:
            member.tick(now)

    lines.serve(lambda: group.is_settled, tick, LIMIT_S)
    return {"seconds": time.perf_counter() - begin, "generation": max(group.settled)}


def settle_consumer(lines: Lines, group_id: str, topic: str, count: str, partitions: str) -> dict[str, float]:
    """The same with server-side assignment: until every member has its target assignment."""
    size = int(count)
    lines.find_coordinator(group_id)
    connected = [lines.connect() for _ in range(size)]
    go()
    begin = time.perf_counter()
    members = [ConsumerMember(line, group_id, f"member-{at:05}", topic) for at, line in enumerate(connected)]
    epoch = 0
    settled = 0.0

    def tick(now: float) -> None:
        nonlocal settled
        for member in members:
            member.tick(now)
        if members[0].epoch > epoch and is_settled(members, int(partitions)):
            settled = now

    def is_over() -> bool:
        return settled > 0

    while True:
        lines.serve(is_over, tick, LIMIT_S)
        # All members have their assignment. The broker knows whether this is the target.
        request = {"group_ids": [group_id], "include_authorized_operations": False}
        [row] = lines.ask(CONSUMER_DESCRIBE, request).groups
        if len(row.members) == size and row.group_epoch == row.assignment_epoch == members[0].epoch:
            return {"seconds": settled - begin, "epoch": row.group_epoch}
        epoch, settled = members[0].epoch, 0.0


def heartbeats(
    lines: Lines, prefix: str, topic: str, count: str, interval: str, span: str
) -> dict[str, float]:
    """This many groups of two members, whose heartbeats are spread evenly over the interval."""
    interval_s, span_s = float(interval), float(span)
    lines.find_coordinator(prefix)
    members = make_groups(lines, [(f"{prefix}-{at}", 2) for at in range(int(count))], topic)
    heard = Counter[bytes]()
    requests = []
    for member in members:
        member.line.hear = lambda body: heard.update((body,))
        requests.append(frame(HEARTBEAT, member.heartbeat()))
    sent = 0
    go()
    begin = time.perf_counter()
    end = begin + span_s

    def tick(now: float) -> None:
        nonlocal sent
        due = int((min(now, end) - begin) * len(members) / interval_s)
        while sent < due:
            members[sent % len(members)].line.send(requests[sent % len(members)])
            sent += 1

    # A coordinator that cannot keep up is late, which shows in the rate.
    lines.serve(lambda: time.perf_counter() >= end and heard.total() >= sent, tick, span_s + 30)
    # No throttling, no error, no tags.
    if list(heard) != [bytes(7)]:
        raise NotAnswered(f"heartbeats were refused: {heard.most_common(3)}")
    return {"heartbeats": sent, "seconds": time.perf_counter() - begin}


def commits(lines: Lines, prefix: str, topic: str, groups: str, count: str, span: str) -> dict[str, float]:
    """This many members in this many groups commit one offset each, with one request in flight."""
    size, span_ns = int(count), int(float(span) * 1e9)
    lines.find_coordinator(prefix)
    share = size // int(groups)
    members = make_groups(lines, [(f"{prefix}-{at}", share) for at in range(int(groups))], topic)
    requests: dict[int, bytes] = {}
    answers: dict[int, bytes] = {}
    for at, member in enumerate(members):
        row = {
            "partition_index": at,
            "committed_offset": 1 << 40,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        request = frame(
            OFFSET_COMMIT,
            {
                "group_id": member.group.group_id, "generation_id_or_member_epoch": member.generation,
                "member_id": member.member_id, "group_instance_id": None,
                "topics": [{"name": topic, "partitions": [row]}],
            },
        )  # fmt: skip
        number = member.line.sock.fileno()
        requests[number] = request
        answers[number] = _first_answer(member.line.sock, request)
    return _commit(lines, [member.line.sock for member in members], requests, answers, span_ns)


def _first_answer(sock: socket.socket, request: bytes) -> bytes:
    """The complete response to a successful commit. All later ones on this connection must be equal."""
    sock.sendall(request)
    answer = sock.recv(4, socket.MSG_WAITALL)
    answer += sock.recv(int.from_bytes(answer, "big"), socket.MSG_WAITALL)
    response = decode_response(*OFFSET_COMMIT, answer[9:], 0)
    codes = [row.error_code.value for of_topic in response.topics for row in of_topic.partitions]
    if codes != [0]:
        raise NotAnswered(f"a commit was refused with error codes {codes}")
    return answer


def _commit(
    lines: Lines, socks: Sequence[socket.socket], requests: dict[int, bytes], answers: dict[int, bytes], span_ns: int
) -> dict[str, float]:  # fmt: skip
    """The loop that must not be slower than a broker: it contains only what each commit needs."""
    by_number = {sock.fileno(): sock for sock in socks}
    sent: dict[int, int] = {}
    times: list[int] = []
    clock, poll = time.perf_counter_ns, lines.poll
    go()
    begin = clock()
    end = begin + span_ns
    for number, sock in by_number.items():
        sent[number] = clock()
        sock.send(requests[number])
    while sent:
        events = poll(10, 256)
        if not events:
            raise NotAnswered(f"{len(sent)} commits were not answered within 10 s")
        for number, _event in events:
            sock = by_number[number]
            if sock.recv(4096) != answers[number]:
                raise NotAnswered("a commit was refused, or a connection closed")
            now = clock()
            times.append(now - sent[number])
            if now < end:
                sent[number] = now
                sock.send(requests[number])
            else:
                del sent[number]
    seconds = (clock() - begin) / 1e9
    times.sort()
    return {
        "commits": len(times),
        "seconds": seconds,
        "p50_ms": quantile(times, 0.5) / 1e6,
        "p99_ms": quantile(times, 0.99) / 1e6,
    }


WORKS: Final[dict[str, Callable[..., dict[str, float]]]] = {
    "settle-classic": settle_classic,
    "settle-consumer": settle_consumer,
    "heartbeats": heartbeats,
    "commits": commits,
}


def main() -> int:
    port, work, *arguments = sys.argv[1:]
    try:
        figures = WORKS[work](Lines(int(port)), *arguments)
    except (NotAnswered, OSError) as error:
        print(f"{work}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**figures, "cpu_s": time.process_time()}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
