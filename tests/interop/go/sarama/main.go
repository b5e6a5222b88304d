// Walks through what Sarama can ask of a broker and prints what it saw as JSON. Sarama speaks the dialect of the broker
// version that it is told.
//
//	sarama ADDRESS produce TOPIC VERSION CODEC COUNT     idempotent, with headers and times of its own
//	sarama ADDRESS read TOPIC VERSION OFFSET             partition 0 from that offset on
//	sarama ADDRESS admin TOPIC VERSION                   the life of a topic
//	sarama ADDRESS member TOPIC VERSION GROUP STRATEGY   a member of a group, until it is told to leave
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

const baseTime = 1_700_000_000_000

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

type seen = map[string]any

func must(err error) {
	if err != nil {
		log.Fatalln("error:", err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func settings(version string) *sarama.Config {
	config := sarama.NewConfig()
	if version == "newest" {
		config.Version = sarama.MaxVersion
	} else {
		parsed, err := sarama.ParseKafkaVersion(version)
		must(err)
		config.Version = parsed
	}
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func main() {
	address, what, topic := os.Args[1], os.Args[2], os.Args[3]
	config := settings(os.Args[4])
	var result any
	switch what {
	case "produce":
		result = produce(address, topic, config, os.Args[5], number(os.Args[6]))
	case "read":
		result = read(address, topic, config, int64(number(os.Args[5])))
	case "admin":
		result = admin(address, topic, config)
	case "member":
		member(address, topic, config, os.Args[5], os.Args[6])
		return
	default:
		must(fmt.Errorf("no such part: %s", what))
	}
	must(json.NewEncoder(os.Stdout).Encode(result))
}

func produce(address, topic string, config *sarama.Config, codec string, count int) any {
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Compression = codecs[codec]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer([]string{address}, config)
	must(err)
	messages := make([]*sarama.ProducerMessage, count)
	for n := range messages {
		messages[n] = &sarama.ProducerMessage{
			Topic:     topic,
			Timestamp: time.UnixMilli(baseTime + int64(n)),
			Key:       sarama.StringEncoder(fmt.Sprintf("key-%d", n)),
			Value:     sarama.StringEncoder(fmt.Sprintf("value-%d", n)),
			Headers:   []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(strconv.Itoa(n))}},
		}
	}
	must(producer.SendMessages(messages))
	must(producer.Close())
	offsets := make([]int64, count)
	for n, message := range messages {
		offsets[n] = message.Offset
	}
	return offsets
}

func read(address, topic string, config *sarama.Config, offset int64) any {
	client, err := sarama.NewClient([]string{address}, config)
	must(err)
	defer client.Close()
	end, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	must(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	partition, err := consumer.ConsumePartition(topic, 0, offset)
	must(err)
	records := []seen{}
	for int64(len(records)) < end-offset {
		select {
		case message := <-partition.Messages():
			headers := [][]string{}
			for _, header := range message.Headers {
				headers = append(headers, []string{string(header.Key), string(header.Value)})
			}
			records = append(records, seen{
				"offset": message.Offset, "time": message.Timestamp.UnixMilli(),
				"key": string(message.Key), "value": string(message.Value), "headers": headers,
			})
		case problem := <-partition.Errors():
			must(problem)
		case <-time.After(time.Minute):
			must(errors.New("nothing came for a minute"))
		}
	}
	must(partition.Close())
	return records
}

// The broker's error, without the words around it.
func refusal(err error) string {
	var told sarama.KError
	var topic *sarama.TopicError
	var widening *sarama.TopicPartitionError
	switch {
	case err == nil:
		return "none"
	case errors.As(err, &topic):
		told = topic.Err
	case errors.As(err, &widening):
		told = widening.Err
	case !errors.As(err, &told):
		return err.Error()
	}
	return strconv.Itoa(int(told))
}

func admin(address, topic string, config *sarama.Config) any {
	client, err := sarama.NewClient([]string{address}, config)
	must(err)
	adm, err := sarama.NewClusterAdminFromClient(client)
	must(err)
	defer adm.Close()
	result := seen{}
	brokers, controller, err := adm.DescribeCluster()
	must(err)
	result["brokers"], result["controller"] = len(brokers), controller

	retention := "7200000"
	detail := &sarama.TopicDetail{
		NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
	}
	must(adm.CreateTopic(topic, detail, true))
	topics, err := adm.ListTopics()
	must(err)
	_, known := topics[topic]
	result["after validation"] = known
	must(adm.CreateTopic(topic, detail, false))
	result["created again"] = refusal(adm.CreateTopic(topic, detail, false))
	topics, err = adm.ListTopics()
	must(err)
	result["partitions"] = topics[topic].NumPartitions
	result["retention"] = *topics[topic].ConfigEntries["retention.ms"]
	must(adm.CreatePartitions(topic, 5, nil, false))
	result["fewer partitions"] = refusal(adm.CreatePartitions(topic, 2, nil, false))
	described, err := adm.DescribeTopics([]string{topic})
	must(err)
	result["more partitions"] = len(described[0].Partitions)

	size := "3000000"
	must(adm.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"segment.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &size},
		"retention.ms":  {Operation: sarama.IncrementalAlterConfigsOperationDelete},
	}, false))
	entries, err := adm.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"segment.bytes", "retention.ms"},
	})
	must(err)
	configs := map[string][]any{}
	for _, entry := range entries {
		configs[entry.Name] = []any{entry.Value, entry.Source.String()}
	}
	result["configs"] = configs

	producing := settings(os.Args[4])
	producing.Producer.Return.Successes = true
	producing.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer([]string{address}, producing)
	must(err)
	for n := range 4 {
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Value: sarama.StringEncoder("value"), Timestamp: time.UnixMilli(baseTime + int64(n)),
		})
		must(err)
	}
	must(producer.Close())
	offsets := map[string]int64{}
	for name, when := range map[string]int64{
		"oldest": sarama.OffsetOldest, "newest": sarama.OffsetNewest, "by time": baseTime + 2, "too late": baseTime + 4,
	} {
		offsets[name], err = client.GetOffset(topic, 0, when)
		must(err)
	}
	result["offsets"] = offsets
	must(adm.DeleteRecords(topic, map[int32]int64{0: 3}))
	result["oldest after"], err = client.GetOffset(topic, 0, sarama.OffsetOldest)
	must(err)

	must(adm.DeleteTopic(topic))
	result["deleted again"] = refusal(adm.DeleteTopic(topic))
	return result
}
