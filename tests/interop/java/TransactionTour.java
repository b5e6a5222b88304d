// Transactions on kafka-clients: commit, abort, consume-transform-produce, and a zombie that is fenced. It prints one line of JSON:
//
//   {"committed": [value …], "read": [value …], "copied": [value …], "offset": committed offset of the group, "fenced": class of the error}
//
//   TransactionTour ADDRESS TRANSACTIONAL-ID TOPIC (of three partitions) COPY (a topic of one)

import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class TransactionTour {
    private static final int ROUNDS = 20;

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        String name = arguments[1];
        String topic = arguments[2];
        String copy = arguments[3];
        Map<String, Object> told = new LinkedHashMap<>();
        try (KafkaProducer<String, String> producer = producer(address, name)) {
            producer.initTransactions();
            told.put("committed", produce(producer, topic));
            List<String> read = read(address, topic, 3);
            told.put("read", read);
            told.put("offset", copy(address, producer, topic, copy));
            told.put("copied", read(address, copy, 1));
            told.put("fenced", fence(address, name, producer, topic));
        }
        System.out.println(new ObjectMapper().writeValueAsString(told));
    }

    private static KafkaProducer<String, String> producer(String address, String name) {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "transactional.id", name);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(String address, String group) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", address, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "isolation.level", "read_committed", "fetch.max.wait.ms", "100"));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static List<String> produce(KafkaProducer<String, String> producer, String topic) {
        List<String> committed = new ArrayList<>();
        for (int round = 0; round < ROUNDS; round++) {
            producer.beginTransaction();
            List<String> values = new ArrayList<>();
            for (int at = 0; at < 6; at++) {
                values.add(round + "-" + at);
                producer.send(new ProducerRecord<>(topic, at % 3, null, values.get(at)));
            }
            if (round % 3 == 1) {
                producer.flush();
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
                committed.addAll(values);
            }
        }
        return committed;
    }

    private static List<String> read(String address, String topic, int partitions) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(address, "reader")) {
            List<TopicPartition> places = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                places.add(new TopicPartition(topic, number));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }

    /** Partition 0 of the topic; every other transaction is aborted and read again. */
    private static long copy(String address, KafkaProducer<String, String> producer, String topic, String copy) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(address, "copier-" + topic)) {
            consumer.assign(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            boolean aborts = false;
            long at = 0;
            while (at < end) {
                consumer.seek(place, at);
                var records = consumer.poll(Duration.ofSeconds(1));
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(copy, 0, null, record.value()));
                }
                long after = consumer.position(place);
                producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(after)), consumer.groupMetadata());
                aborts = !aborts;
                if (aborts) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    at = after;
                }
            }
            return consumer.committed(java.util.Set.of(place)).get(place).offset();
        }
    }

    private static String fence(String address, String name, KafkaProducer<String, String> zombie, String topic) {
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, null, "zombie"));
        zombie.flush();
        try (KafkaProducer<String, String> heir = producer(address, name)) {
            heir.initTransactions();
        }
        try {
            zombie.commitTransaction();
            return "";
        } catch (KafkaException error) {
            return error.getClass().getSimpleName();
        }
    }
}
