"""Every sync in the code is needed: whichever one is left out, something acknowledged is lost.

Each site that asks for a sync is found in the source and left out in turn. Most are missed by some seed of the simulator
within a few seconds; for a few, whose moment is rare, a short story of their own stands below.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log import swap
from ottla.log.compaction import clean
from ottla.log.epochs import LeaderEpochs
from ottla.log.names import EPOCHS
from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import open_log
from ottla.metadata import records as r
from ottla.model.api_key import ApiKey
from ottla.ports.effects import RUN, SYNC
from ottla.records.record import Record, decode_batches, encode_batch
from ottla.replication.replica import Replica
from ottla.runtime.embedded_store import EmbeddedStore
from testkit.checkers.partition import Anomaly
from testkit.sim.clients import Shared
from testkit.sim.disk import PowerCut, SimDisk
from testkit.sim.node import DATA_DIR, Delays, SimNode
from testkit.sim.scenario import Failure, Options, run
from testkit.sim.sites import all_sites, call_sites
from testkit.sim.world import START_MS, SeededEntropy, World
from tests.log import test_swap as swaps
from tests.log.compaction_pass import task_of
from tests.sim.stories import Caller, cut_a_compaction, cut_at_each_step

SEEDS_MAX = 700
ENDINGS = (("cut", "cut", "cut", "kill", "stop"), ("kill", "cut"), ("stop", "cut"))
POLICIES = ("mixed", "durable", "page-cache")


def options(seed: int, site: str | None) -> Options:
    return Options(
        lives=5,
        events_max=250,
        endings=ENDINGS[seed % 3],  # type: ignore[arg-type]
        policy=POLICIES[seed // 3 % 3],  # type: ignore[arg-type]
        directories=2 if seed % 10 == 9 else 1,
        # Which makes all other sites harder to miss: a compacted log need not keep everything.
        compacts=seed % 4 == 2
        if site is None
        else "compact" in site or "log_cleaner" in site or "/swap.py" in site,
        ignored_site=site,
    )


def disk_without(site: str | None) -> SimDisk:
    disk = SimDisk(Random(0), strict=True)
    disk.make_dir("/var")
    disk.sync_dir("/")
    disk.ignored_site = site
    return disk


# --- short stories ------------------------------------------------------------------------------------------------


def a_new_journal_keeps_its_first_entry(site: str | None) -> bool:
    disk = disk_without(site)
    store = EmbeddedStore(disk, "/var/data")
    store.load()
    store.append([r.Cluster("c")])
    disk.crash()
    return EmbeddedStore(disk, "/var/data").load() == [r.Cluster("c")]


def a_journal_entry_that_was_acted_on_stays(site: str | None) -> bool:
    """The process is killed before the sync of an entry; the next one finds it in the page cache and serves it."""
    disk = disk_without(None)
    store = EmbeddedStore(disk, "/var/data")
    store.load()
    disk.cut_before_sync = (1, "journal")
    with pytest.raises(PowerCut):
        store.append([r.Cluster("c")])
    disk.heal()
    disk.ignored_site = site
    assert EmbeddedStore(disk, "/var/data").load() == [r.Cluster("c")]
    disk.crash()
    return EmbeddedStore(disk, "/var/data").load() == [r.Cluster("c")]


def a_deleted_topic_stays_deleted(site: str | None) -> bool:
    """Another topic of its name is made; the power is cut before the old directory's going is durable."""
    world = World(1)
    disk = disk_without(site)
    config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": DATA_DIR})
    shared = Shared(world)

    def start() -> Caller:
        shared.node = SimNode(world, disk, config, Delays(job_ms=0))
        shared.node.start()
        # From here on background work takes for ever.
        shared.node.delays.job_ms = 1 << 40
        caller = Caller(shared, "caller")
        caller.begin()
        return caller

    caller = start()
    first = caller.create()
    batch = encode_batch([Record(0, world.now_ms, None, b"of the first")])
    rows = [{"topic_id": first, "partition_data": [{"index": 0, "records": batch}]}]
    produced = caller.call(
        ApiKey.PRODUCE, {"transactional_id": None, "acks": -1, "timeout": 9999, "topic_data": rows}
    )
    assert produced.responses[0].partition_responses[0].error_code == 0
    caller.call(ApiKey.DELETE_TOPICS, {"topics": [{"name": None, "topic_id": first}], "timeout": 1000})
    second = caller.create()
    assert shared.node is not None
    shared.node.kill()
    disk.crash()
    caller = start()
    fetched = caller.call(
        ApiKey.FETCH,
        {
            "max_wait": 1000, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1,
            "topics": [{
                "topic_id": second,
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
            }],
        },
    )  # fmt: skip
    return not list(decode_batches(fetched.responses[0].partitions[0].records or b""))


def what_a_start_found_and_told_stays(site: str | None) -> bool:
    """A log was never synced when the process was killed; the next one reads it, and consumers see what it read."""
    disk = disk_without(None)
    config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": DATA_DIR})
    disk.make_dir(DATA_DIR)
    disk.sync_dir("/var")
    topic_id = bytes(range(16))
    records = [r.Cluster("c"), r.Topic("t", topic_id), r.Partition(topic_id, 0, (1,), (1,), 1)]

    def start() -> Replica:
        # Without a metadata journal, whose own syncs are of the same directory.
        broker = Broker(config, disk, SeededEntropy(Random(0)))
        broker.start(records, START_MS)
        broker.settle(START_MS)
        return broker.partitions.by_name["t"].replicas[0]

    start().log.append(encode_batch([Record(0, START_MS, None, b"a")]), 0, START_MS)
    disk.ignored_site = site
    told = start().high_watermark
    disk.crash()
    return start().high_watermark >= told


def a_log_that_begins_anew_does_not_begin_at_zero(site: str | None) -> bool:
    """All its records were lost, but some had been deleted before: their offsets must not come again."""
    for seed in range(40):
        disk = SimDisk(Random(seed), strict=False)
        disk.make_dir("/t-0")
        config = TopicConfig.resolve({}, BrokerConfig.from_properties({"node.id": "1"}))
        log = PartitionLog.create(disk, "/t-0", config, start_offset=0, now_ms=START_MS, topic_id_file=b"")
        log.append(encode_batch([Record(0, START_MS, None, b"a")]), 0, START_MS)
        for name in disk.list("/t-0"):
            disk.sync(disk.open(f"/t-0/{name}"))
        disk.sync_dir("/t-0")
        disk.sync_dir("/")
        disk.ignored_site = site
        for _ in range(2):
            found = open_log(
                disk, "/t-0", config, recovery_point=0, log_start_offset=7, clean=False, now_ms=START_MS
            )
            if found is None or found.log.next_offset < 7:
                return False
            disk.crash()
    return True


def an_epoch_is_durable_with_its_first_record(site: str | None) -> bool:
    """R1: replicas will compare their histories by these starts, so an answered record's epoch must be on the disk."""
    world = World(1)
    disk = disk_without(site)
    shared = Shared(world)
    config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": DATA_DIR})
    shared.node = SimNode(world, disk, config, Delays(job_ms=1 << 40))
    shared.node.start()
    shared.node.delays.job_ms = 0
    caller = Caller(shared, "caller")
    caller.begin()
    topic_id = caller.create()
    shared.node.delays.job_ms = 1 << 40
    batch = encode_batch([Record(0, world.now_ms, None, b"a")])
    rows = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch}]}]
    caller.call(ApiKey.PRODUCE, {"transactional_id": None, "acks": -1, "timeout": 9999, "topic_data": rows})
    shared.node.kill()
    disk.crash()
    epochs = LeaderEpochs.parse(disk.read_file(f"{DATA_DIR}/t-0/{EPOCHS}"))
    return epochs is not None and epochs.pairs == [(0, 0)]


def a_tail_that_was_cut_off_stays_away(site: str | None) -> bool:
    """The log goes on in another segment, so nobody looks at the end of this one again."""
    disk = disk_without(None)
    disk.make_dir("/t-0")
    config = TopicConfig.resolve({}, BrokerConfig.from_properties({"node.id": "1"}))
    log = PartitionLog.create(disk, "/t-0", config, start_offset=0, now_ms=START_MS, topic_id_file=b"")
    batch = encode_batch([Record(0, START_MS, None, b"a")])
    log.append(batch, 0, START_MS)
    size = log.active.size
    disk.write(log.active.file, size, (b"torn" * 30,))
    for name in disk.list("/t-0"):
        disk.sync(disk.open(f"/t-0/{name}"))
    disk.sync_dir("/t-0")
    disk.sync_dir("/")
    disk.ignored_site = site
    arguments: dict[str, Any] = {"log_start_offset": 0, "clean": False, "now_ms": START_MS}
    found = open_log(disk, "/t-0", config, recovery_point=1, **arguments)
    assert found is not None
    assert found.log.active.size == size
    found.log.roll(START_MS)
    found.log.append(batch, 0, START_MS)
    flush = found.log.begin_flush()
    assert flush is not None
    for file in flush.files:
        disk.sync(file)
    disk.sync_dir("/t-0")
    disk.crash()
    found = open_log(disk, "/t-0", config, recovery_point=2, **arguments)
    assert found is not None
    return found.log.segments[0].size == size


def a_move_between_directories_loses_nothing(site: str | None) -> bool:
    if site is not None and "/moving.py" not in site and "/log_directory.py" not in site:
        # What others need is missed sooner elsewhere.
        return True
    return cut_at_each_step(1, is_strict=True, ignored_site=site) > 0


def a_start_that_finishes_a_swap_leaves_no_old_segment(site: str | None) -> bool:
    """A compaction was killed after its commit; the next start finishes it, and the power is cut just then."""
    for seed in range(30):
        disk = SimDisk(Random(seed), strict=False)
        log = swaps.make_log(disk, "/t-0")
        task = task_of(log)
        assert task is not None
        for output in clean(disk, task).outputs:
            swap.commit(disk, "/t-0", output, task.token)
        disk.sync_dir("/t-0")
        disk.ignored_site = site
        for _ in range(2):
            found = swaps.reopen(disk, "/t-0", swaps.RECOVERY_POINT)
            swaps.check(found, swaps.BEFORE, swaps.AFTER)
            disk.crash()
    return True


def a_pass_of_compaction_loses_nothing(site: str | None) -> bool:
    if site is None or "/log_cleaner.py" in site:
        # What others need is missed sooner elsewhere.
        for seed in range(2 if site is None else 40):
            cut_a_compaction(seed, site)
    return True


def what_was_set_aside_stays_aside(site: str | None) -> bool:
    """A folder that no topic knows is renamed; then a topic comes that is called so, and the power is cut."""
    disk = disk_without(site)
    config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": DATA_DIR})
    path = f"{DATA_DIR}/t-0"
    topic_config = TopicConfig.resolve({}, config)
    log = PartitionLog.create(disk, path, topic_config, start_offset=0, now_ms=START_MS, topic_id_file=b"")
    log.append(encode_batch([Record(0, START_MS, None, b"a")]), 0, START_MS)
    for name in disk.list(path):
        disk.sync(disk.open(f"{path}/{name}"))
    directory = path
    while directory := directory.rpartition("/")[0]:
        disk.sync_dir(directory)
    disk.sync_dir(path)
    cluster: list[r.Record] = [r.Cluster("c")]
    Broker(config, disk, SeededEntropy(Random(0))).start(cluster, START_MS)
    disk.crash()
    topic_id = bytes(range(16))
    broker = Broker(config, disk, SeededEntropy(Random(1)))
    broker.start([*cluster, r.Topic("t", topic_id), r.Partition(topic_id, 0, (1,), (1,), 1)], START_MS)
    broker.settle(START_MS)
    return broker.partitions.by_name["t"].replicas[0].log.next_offset == 0


def perform(broker: Broker, disk: SimDisk) -> None:
    """What the shell does: everything that was asked for."""
    while broker.settle(broker.now_ms) or broker.outbox:
        outbox, broker.outbox = broker.outbox, []
        for effect in outbox:
            if effect[0] == SYNC:
                if effect[1] is not None:
                    disk.sync(effect[1])
                if effect[2] is not None:
                    disk.sync_dir(effect[2])
                broker.synced([effect[3]], broker.now_ms)
            elif effect[0] == RUN:
                effect[2](effect[1](disk), None)


def started(disk: SimDisk, partitions: int, now_ms: int = START_MS, **settings: str) -> Broker:
    """A broker with a topic of some partitions, and without a metadata journal."""
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": DATA_DIR, **properties})
    topic_id = bytes(range(16))
    each = [r.Partition(topic_id, number, (1,), (1,), 1) for number in range(partitions)]
    broker = Broker(config, disk, SeededEntropy(Random(0)))
    broker.start([r.Cluster("c"), r.Topic("t", topic_id), *each], now_ms)
    perform(broker, disk)
    return broker


def a_log_of_which_all_went_goes_on_where_it_ended(site: str | None) -> bool:
    """Retention begins a new segment and takes the others away: its name must be there when theirs are not."""
    for seed in range(60):
        disk = SimDisk(Random(seed), strict=False)
        disk.make_dir(DATA_DIR)
        disk.sync_dir("/var")
        disk.sync_dir("/")
        disk.ignored_site = site
        settings = {"log_retention_ms": "1", "log_retention_check_interval_ms": "1000"}
        settings |= {"log_segment_delete_delay_ms": "0"}
        broker = started(disk, 1, **settings)
        replica = broker.partitions.by_name["t"].replicas[0]
        replica.log.append(encode_batch([Record(0, START_MS, None, b"a")]), 0, START_MS)
        broker.appended(replica, replica.log, START_MS)
        perform(broker, disk)
        assert replica.high_watermark == 1
        for later_ms in (1016, 1032, 1048):
            broker.tick(START_MS + later_ms)
            perform(broker, disk)
        assert replica.log.log_start_offset == 1
        disk.crash()
        if started(disk, 1).partitions.by_name["t"].replicas[0].log.next_offset != 1:
            return False
    return True


def many_logs(disk: SimDisk) -> bool:
    """A stop with so many logs that their device is synced, and not each file: what they hold stays."""
    broker = started(disk, 20, log_flush_policy="page-cache")
    for replica in broker.partitions.replicas():
        replica.log.append(encode_batch([Record(0, START_MS, None, b"a")]), 0, START_MS)
        broker.appended(replica, replica.log, START_MS)
    broker.stop()
    disk.crash()
    return all(replica.log.next_offset == 1 for replica in started(disk, 20).partitions.replicas())


def many_logs_stay(site: str | None) -> bool:
    return many_logs(disk_without(site))


STORIES: tuple[Callable[[str | None], bool], ...] = (
    a_new_journal_keeps_its_first_entry,
    a_journal_entry_that_was_acted_on_stays,
    a_deleted_topic_stays_deleted,
    what_a_start_found_and_told_stays,
    a_log_that_begins_anew_does_not_begin_at_zero,
    an_epoch_is_durable_with_its_first_record,
    a_tail_that_was_cut_off_stays_away,
    a_move_between_directories_loses_nothing,
    a_start_that_finishes_a_swap_leaves_no_old_segment,
    a_pass_of_compaction_loses_nothing,
    what_was_set_aside_stays_aside,
    a_log_of_which_all_went_goes_on_where_it_ended,
    many_logs_stay,
)


# --- tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", STORIES)
def test_the_stories_end_well_with_every_sync_in_place(story: Callable[[str | None], bool]) -> None:
    assert story(None)


def test_every_site_in_the_source_is_reached_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[str, None] = {}
    for seed in range(1, 60):
        reached |= dict.fromkeys(run(seed, options(seed, None)).sites)
    # The simulator's nodes have few logs, and it takes a rare run to find a folder that no topic knows.
    disk = disk_without(None)
    many_logs(disk)
    reached |= dict.fromkeys(site for site in disk.sites if site in all_sites())
    disk = disk_without(None)
    monkeypatch.setattr("tests.chaos.test_syncs.disk_without", lambda _site: disk)
    what_was_set_aside_stays_aside(None)
    reached |= dict.fromkeys(site for site in disk.sites if site in all_sites())
    assert sorted(reached) == sorted(all_sites())
    assert len(call_sites()) > 5


@pytest.mark.parametrize("site", all_sites())
def test_a_sync_that_is_left_out_is_missed(site: str) -> None:
    for story in STORIES:
        try:
            if not story(site):
                return
        except (Anomaly, AssertionError):
            return
    for seed in range(1, SEEDS_MAX):
        try:
            run(seed, options(seed, site))
        except Failure:
            return
    pytest.fail(
        f"nothing is lost without the sync of {site}: it is not needed, or the simulator does not see why"
    )
