// Walks through what kafka-clients can ask of a broker and prints what it saw as JSON.
//
//   ClientTour ADDRESS produce TOPIC CODEC COUNT     records with keys, headers and times of their own;
//                                                    with "plain" behind it by a producer that is not idempotent
//   ClientTour ADDRESS read TOPIC TIME               positions, offsets by time, all records of all partitions
//   ClientTour ADDRESS refusals TOPIC COMPACTED      what a producer and a consumer are told when they are wrong
//   ClientTour ADDRESS admin TOPIC                   the life of a topic through the admin client
//   ClientTour ADDRESS many TOPIC PARTITIONS         one consumer of many partitions, records arriving one by one
//   ClientTour ADDRESS in-two-halves TOPIC COUNT     produces, prints a line, waits for one, produces on

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ClientTour {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long TIME = 1_700_000_000_000L;

    private final String address;

    private ClientTour(String address) {
        this.address = address;
    }

    public static void main(String[] arguments) throws Exception {
        ClientTour tour = new ClientTour(arguments[0]);
        String topic = arguments[2];
        Object seen = switch (arguments[1]) {
            case "produce" -> tour.produce(topic, arguments[3], Integer.parseInt(arguments[4]), arguments.length < 6);
            case "read" -> tour.read(topic, Long.parseLong(arguments[3]));
            case "refusals" -> tour.refusals(topic, arguments[3]);
            case "admin" -> tour.admin(topic);
            case "many" -> tour.many(topic, Integer.parseInt(arguments[3]));
            case "in-two-halves" -> tour.inTwoHalves(topic, Integer.parseInt(arguments[3]));
            default -> throw new IllegalArgumentException(arguments[1]);
        };
        System.out.println(JSON.writeValueAsString(seen));
    }

    private Producer<String, String> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", address);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", address);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private static ProducerRecord<String, String> record(String topic, Integer partition, int number) {
        String key = number % 10 == 3 ? null : "key-" + number;
        String value = number % 10 == 5 ? null : "value-" + number;
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, partition, TIME + number, key, value);
        for (int header = 0; header < number % 3; header++) {
            record.headers().add("header-" + header, String.valueOf(number).getBytes(StandardCharsets.UTF_8));
        }
        if (number % 7 == 0) {
            record.headers().add("none", null);
        }
        return record;
    }

    /** Callbacks come in the order of sending within a partition. */
    private Object produce(String topic, String codec, int count, boolean idempotent) throws Exception {
        List<Object> acknowledged = new ArrayList<>();
        List<String> failed = new ArrayList<>();
        Map<String, Object> settings =
            Map.of("compression.type", codec, "linger.ms", 5, "enable.idempotence", idempotent);
        try (Producer<String, String> producer = producer(settings)) {
            int partitions = producer.partitionsFor(topic).size();
            for (int number = 0; number < count; number++) {
                producer.send(record(topic, number % partitions, number), (RecordMetadata data, Exception error) -> {
                    if (error != null) {
                        failed.add(error.toString());
                    } else {
                        acknowledged.add(List.of(data.partition(), data.offset(), data.timestamp()));
                    }
                });
                if (number % 50 == 49) {
                    producer.flush();
                }
            }
        }
        return Map.of("acknowledged", acknowledged, "failed", failed);
    }

    private Object read(String topic, long time) {
        Map<String, Object> seen = new LinkedHashMap<>();
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition()))
                .collect(Collectors.toList());
            consumer.assign(partitions);
            seen.put("beginning", byNumber(consumer.beginningOffsets(partitions)));
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            seen.put("end", byNumber(ends));
            Map<TopicPartition, Long> asked = new HashMap<>();
            partitions.forEach(partition -> asked.put(partition, time));
            Map<Integer, List<Long>> found = new TreeMap<>();
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> each : consumer.offsetsForTimes(asked).entrySet()) {
                if (each.getValue() != null) {
                    found.put(each.getKey().partition(), List.of(each.getValue().offset(), each.getValue().timestamp()));
                }
            }
            seen.put("at", found);

            List<Object> records = new ArrayList<>();
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                consumer.poll(POLL).forEach(record -> records.add(shown(record)));
            }
            seen.put("records", records);

            // Into the middle of a batch.
            TopicPartition first = partitions.get(0);
            consumer.assign(List.of(first));
            consumer.seek(first, ends.get(first) / 2);
            seen.put("sought", shown(next(consumer)));
            consumer.seekToBeginning(List.of(first));
            seen.put("first", shown(next(consumer)));
            consumer.seekToEnd(List.of(first));
            seen.put("last position", consumer.position(first));
            seen.put("lag", consumer.currentLag(first).orElse(-1));
        }
        return seen;
    }

    private static ConsumerRecord<String, String> next(KafkaConsumer<String, String> consumer) {
        while (true) {
            for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                return record;
            }
        }
    }

    private static Map<Integer, Long> byNumber(Map<TopicPartition, Long> offsets) {
        Map<Integer, Long> numbered = new TreeMap<>();
        offsets.forEach((partition, offset) -> numbered.put(partition.partition(), offset));
        return numbered;
    }

    private static Object shown(ConsumerRecord<String, String> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            String value = header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
            headers.add(Arrays.asList(header.key(), value));
        }
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("partition", record.partition());
        seen.put("offset", record.offset());
        seen.put("time", record.timestamp());
        seen.put("time type", record.timestampType().toString());
        seen.put("key", record.key());
        seen.put("value", record.value());
        seen.put("headers", headers);
        seen.put("leader epoch", record.leaderEpoch().orElse(-1));
        return seen;
    }

    /** The short name of the exception that an attempt ends in. */
    private static String refusal(Future<?> attempt) throws InterruptedException {
        try {
            attempt.get();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    private Object refusals(String topic, String compacted) throws Exception {
        Map<String, Object> seen = new LinkedHashMap<>();
        Map<String, Object> large = Map.of("max.request.size", 4_000_000, "buffer.memory", 8_000_000);
        try (Producer<String, String> producer = producer(large)) {
            seen.put("too large", refusal(producer.send(new ProducerRecord<>(topic, "x".repeat(2_000_000)))));
            seen.put("below the limit", refusal(producer.send(new ProducerRecord<>(topic, "x".repeat(1_000_000)))));
            seen.put("no key", refusal(producer.send(new ProducerRecord<>(compacted, "value"))));
            seen.put("a key", refusal(producer.send(new ProducerRecord<>(compacted, "key", "value"))));
            long future = System.currentTimeMillis() + 86_400_000L;
            seen.put("of tomorrow", refusal(producer.send(new ProducerRecord<>(topic, 0, future, "key", "value"))));
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 1_000);
            try {
                next(consumer);
                seen.put("beyond the end", "none");
            } catch (RuntimeException error) {
                seen.put("beyond the end", error.getClass().getSimpleName());
            }
        }
        return seen;
    }

    private Object admin(String topic) throws Exception {
        Map<String, Object> seen = new LinkedHashMap<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            DescribeClusterResult cluster = admin.describeCluster();
            seen.put("cluster", Map.of(
                "id", cluster.clusterId().get(),
                "controller", cluster.controller().get().id(),
                "nodes", cluster.nodes().get().stream().map(node -> node.host() + ":" + node.port()).toList()));

            NewTopic wanted = new NewTopic(topic, Optional.of(4), Optional.empty())
                .configs(Map.of("retention.ms", "7200000"));
            CreateTopicsResult tried = admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true));
            seen.put("validated partitions", tried.numPartitions(topic).get());
            seen.put("after validation", admin.listTopics().names().get().contains(topic));
            CreateTopicsResult made = admin.createTopics(List.of(wanted));
            Uuid id = made.topicId(topic).get();
            seen.put("created", Map.of(
                "partitions", made.numPartitions(topic).get(),
                "replicas", made.replicationFactor(topic).get(),
                "retention", made.config(topic).get().get("retention.ms").value()));
            seen.put("created again", refusal(admin.createTopics(List.of(wanted)).all()));
            seen.put("listed id is its id", admin.listTopics().namesToListings().get().get(topic).topicId().equals(id));
            seen.put("described", described(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)));
            TopicCollection ids = TopicCollection.ofTopicIds(List.of(id));
            seen.put("described by id", described(admin.describeTopics(ids).allTopicIds().get().get(id)));
            TopicCollection strangers = TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()));
            seen.put("unknown id", refusal(admin.describeTopics(strangers).allTopicIds()));
            seen.put("unknown name", refusal(admin.describeTopics(List.of(topic + "-none")).allTopicNames()));

            seen.put("fewer partitions", refusal(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all()));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            seen.put("more partitions", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());

            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            seen.put("configs", configs(admin, resource));
            alter(admin, resource, false,
                new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
                new AlterConfigOp(new ConfigEntry("segment.bytes", "3000000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)).get();
            alter(admin, resource, true,
                new AlterConfigOp(new ConfigEntry("segment.bytes", "4000000"), AlterConfigOp.OpType.SET)).get();
            seen.put("altered configs", configs(admin, resource));
            alter(admin, resource, false,
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.SUBTRACT)).get();
            seen.put("subtracted configs", configs(admin, resource));
            seen.put("wrong config", refusal(alter(admin, resource, false,
                new AlterConfigOp(new ConfigEntry("segment.bytes", "few"), AlterConfigOp.OpType.SET))));

            try (Producer<String, String> producer = producer(Map.of())) {
                // The second has the greatest time.
                for (int time : new int[] {100, 300, 200}) {
                    producer.send(new ProducerRecord<>(topic, 0, TIME + time, "key", "value")).get();
                }
            }
            TopicPartition partition = new TopicPartition(topic, 0);
            Map<String, OffsetSpec> specs = new LinkedHashMap<>();
            specs.put("earliest", OffsetSpec.earliest());
            specs.put("latest", OffsetSpec.latest());
            specs.put("max timestamp", OffsetSpec.maxTimestamp());
            specs.put("earliest local", OffsetSpec.earliestLocal());
            specs.put("latest tiered", OffsetSpec.latestTiered());
            specs.put("by time", OffsetSpec.forTimestamp(TIME + 150));
            specs.put("too late", OffsetSpec.forTimestamp(TIME + 301));
            Map<String, Object> listed = new LinkedHashMap<>();
            for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
                ListOffsetsResult.ListOffsetsResultInfo info =
                    admin.listOffsets(Map.of(partition, spec.getValue())).partitionResult(partition).get();
                listed.put(spec.getKey(), List.of(info.offset(), info.timestamp()));
            }
            seen.put("offsets", listed);
            seen.put("deleted below", admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(2)))
                .lowWatermarks().get(partition).get().lowWatermark());
            seen.put("deleted beyond", refusal(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(9))).all()));
            seen.put("earliest after", admin.listOffsets(Map.of(partition, OffsetSpec.earliest()))
                .partitionResult(partition).get().offset());

            admin.deleteTopics(ids).all().get();
            seen.put("after deletion", admin.listTopics().names().get().contains(topic));
            seen.put("deleted again", refusal(admin.deleteTopics(List.of(topic)).all()));
        }
        return seen;
    }

    private static KafkaFuture<Void> alter(Admin admin, ConfigResource resource, boolean validateOnly, AlterConfigOp... changes) {
        Map<ConfigResource, Collection<AlterConfigOp>> request = Map.of(resource, List.of(changes));
        return admin.incrementalAlterConfigs(request, new AlterConfigsOptions().validateOnly(validateOnly)).all();
    }

    private static Object described(TopicDescription topic) {
        return topic.partitions().stream()
            .map(info -> List.of(info.partition(), info.leader().id(), info.replicas().size(), info.isr().size()))
            .toList();
    }

    private static Object configs(Admin admin, ConfigResource resource) throws Exception {
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        Map<String, Object> seen = new TreeMap<>();
        for (ConfigEntry entry : config.entries()) {
            boolean documented = entry.documentation() != null && !entry.documentation().isBlank();
            seen.put(entry.name(), Arrays.asList(
                entry.value(), entry.source().toString(), entry.type().toString(), documented, entry.synonyms().size()));
        }
        return seen;
    }

    /** A session holds all partitions; each answer after the first holds only those that have news. */
    private Object many(String topic, int count) throws Exception {
        List<TopicPartition> partitions = IntStream.range(0, count).mapToObj(n -> new TopicPartition(topic, n)).toList();
        List<Object> seen = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("fetch.max.wait.ms", 100));
             Producer<String, String> producer = producer(Map.of("linger.ms", 0))) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            partitions.forEach(consumer::position);
            for (int number = 0; number < 3 * count; number++) {
                // Coprime to the number of partitions, so every one has its turn three times.
                int partition = number * 7 % count;
                producer.send(new ProducerRecord<>(topic, partition, null, "value-" + number)).get();
                if (number == count) {
                    consumer.pause(partitions.subList(0, count / 2));
                } else if (number == 2 * count) {
                    consumer.resume(partitions.subList(0, count / 2));
                }
                if (number % 10 == 0) {
                    consumer.poll(POLL).forEach(record -> seen.add(List.of(record.partition(), record.offset(), record.value())));
                }
            }
            while (seen.size() < 3 * count) {
                consumer.poll(POLL).forEach(record -> seen.add(List.of(record.partition(), record.offset(), record.value())));
            }
        }
        return seen;
    }

    private Object inTwoHalves(String topic, int count) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Long> offsets = new ArrayList<>();
        try (Producer<String, String> producer = producer(Map.of("linger.ms", 0))) {
            for (int half = 0; half < 2; half++) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int number = 0; number < count; number++) {
                    sent.add(producer.send(record(topic, 0, half * count + number)));
                }
                for (Future<RecordMetadata> each : sent) {
                    offsets.add(each.get().offset());
                }
                if (half == 0) {
                    System.out.println(JSON.writeValueAsString(offsets));
                    input.readLine();
                }
            }
        }
        return offsets;
    }
}
