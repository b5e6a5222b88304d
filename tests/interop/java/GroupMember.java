// A member of a consumer group on kafka-clients. It says in lines of JSON what it has and reads, and is told in lines what to do.
//
//   GroupMember ADDRESS GROUP topics:A,B | pattern:REGEX [CONFIG=VALUE …]
//
//   says   {"has": [[topic, partition] …]}   {"read": [[topic, partition, offset] …]}
//          {"event": "assigned" | "revoked" | "lost", "of": [[topic, partition] …]}
//          {"committed": [[topic, partition, offset] …]}   {"left": true}
//   hears  commit | commit-async | leave

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Queue<String> COMMANDS = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", arguments[0], "group.id", arguments[1], "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "fetch.max.wait.ms", "100", "metadata.max.age.ms", "1000"));
        Stream.of(arguments).skip(3).map(each -> each.split("=", 2)).forEach(pair -> settings.put(pair[0], pair[1]));
        Thread listener = new Thread(GroupMember::listen);
        listener.setDaemon(true);
        listener.start();
        String[] subscription = arguments[2].split(":", 2);
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (subscription[0].equals("pattern")) {
                consumer.subscribe(new SubscriptionPattern(subscription[1]), new GroupMember());
            } else {
                consumer.subscribe(Arrays.asList(subscription[1].split(",")), new GroupMember());
            }
            poll(consumer);
        }
        say(Map.of("left", true));
    }

    private static void poll(KafkaConsumer<String, String> consumer) throws Exception {
        Set<TopicPartition> had = Set.of();
        while (true) {
            List<Object> read = new ArrayList<>();
            consumer.poll(Duration.ofMillis(50))
                .forEach(record -> read.add(List.of(record.topic(), record.partition(), record.offset())));
            if (!consumer.assignment().equals(had)) {
                had = Set.copyOf(consumer.assignment());
                say(Map.of("has", places(had)));
            }
            if (!read.isEmpty()) {
                say(Map.of("read", read));
            }
            String command = COMMANDS.poll();
            if (command == null) {
                continue;
            }
            switch (command) {
                case "commit" -> {
                    Map<TopicPartition, OffsetAndMetadata> offsets = consumer.assignment().stream().collect(
                        Collectors.toMap(each -> each, each -> new OffsetAndMetadata(consumer.position(each), "by Java")));
                    consumer.commitSync(offsets);
                    say(committed(consumer.committed(consumer.assignment())));
                }
                case "commit-async" -> consumer.commitAsync((offsets, error) ->
                    say(error == null ? committed(offsets) : Map.of("failed", error.toString())));
                case "leave" -> {
                    return;
                }
                default -> throw new IllegalArgumentException(command);
            }
        }
    }

    private static Map<String, Object> committed(Map<TopicPartition, OffsetAndMetadata> offsets) {
        List<Object> rows = new ArrayList<>();
        offsets.forEach((place, offset) -> rows.add(List.of(place.topic(), place.partition(), offset.offset())));
        return Map.of("committed", rows);
    }

    private static List<List<Object>> places(Collection<TopicPartition> places) {
        return places.stream().map(each -> List.<Object>of(each.topic(), each.partition())).toList();
    }

    private static void listen() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            lines.lines().forEach(COMMANDS::add);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static synchronized void say(Object what) {
        try {
            System.out.println(JSON.writeValueAsString(what));
        } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void tell(String event, Collection<TopicPartition> of) {
        say(Map.of("event", event, "of", places(of)));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> of) {
        tell("assigned", of);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> of) {
        tell("revoked", of);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> of) {
        tell("lost", of);
    }
}
