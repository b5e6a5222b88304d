// Walks through what franz-go and its admin client can ask of a broker and prints what it saw as JSON.
//
//	franz ADDRESS produce TOPIC CODEC COUNT     idempotent, with headers and times of its own
//	franz ADDRESS read TOPIC OFFSET             all partitions from that offset on
//	franz ADDRESS admin TOPIC                   the life of a topic
//	franz ADDRESS many TOPIC                    one consumer of many partitions, records arriving one by one
//	franz ADDRESS member TOPIC GROUP BALANCER   a member of a group, until it is told to leave
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const baseTime = 1_700_000_000_000

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

type seen = map[string]any

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func client(address string, options ...kgo.Opt) *kgo.Client {
	// Warnings and worse; a test takes any for a failure.
	logger := kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)
	all := append([]kgo.Opt{kgo.SeedBrokers(address), kgo.WithLogger(logger)}, options...)
	made, err := kgo.NewClient(all...)
	must(err)
	return made
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	address, what, topic := os.Args[1], os.Args[2], os.Args[3]
	var result any
	switch what {
	case "produce":
		result = produce(ctx, address, topic, os.Args[4], number(os.Args[5]))
	case "read":
		result = read(ctx, address, topic, int64(number(os.Args[4])))
	case "admin":
		result = admin(ctx, address, topic)
	case "many":
		result = many(ctx, address, topic)
	case "member":
		member(context.Background(), address, os.Args[4], topic, os.Args[5])
		return
	default:
		must(fmt.Errorf("no such part: %s", what))
	}
	must(json.NewEncoder(os.Stdout).Encode(result))
}

func partitions(ctx context.Context, cl *kgo.Client, topic string) []int32 {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	must(err)
	return topics[topic].Partitions.Numbers()
}

func produce(ctx context.Context, address, topic, codec string, count int) any {
	cl := client(address, kgo.ProducerBatchCompression(codecs[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer cl.Close()
	width := len(partitions(ctx, cl, topic))
	records := make([]*kgo.Record, count)
	for n := range records {
		record := &kgo.Record{
			Topic:     topic,
			Partition: int32(n % width),
			Timestamp: time.UnixMilli(baseTime + int64(n)),
			Headers:   []kgo.RecordHeader{{Key: "number", Value: []byte(strconv.Itoa(n))}},
		}
		if n%10 != 3 {
			record.Key = []byte(fmt.Sprintf("key-%d", n))
		}
		if n%10 != 5 {
			record.Value = []byte(fmt.Sprintf("value-%d", n))
		}
		records[n] = record
	}
	acknowledged := make([][]int64, 0, count)
	for _, result := range cl.ProduceSync(ctx, records...) {
		must(result.Err)
		acknowledged = append(acknowledged, []int64{int64(result.Record.Partition), result.Record.Offset})
	}
	return acknowledged
}

func shown(record *kgo.Record) seen {
	headers := [][]string{}
	for _, header := range record.Headers {
		headers = append(headers, []string{header.Key, string(header.Value)})
	}
	text := func(data []byte) any {
		if data == nil {
			return nil
		}
		return string(data)
	}
	return seen{
		"partition": record.Partition, "offset": record.Offset, "time": record.Timestamp.UnixMilli(),
		"key": text(record.Key), "value": text(record.Value), "headers": headers, "leader epoch": record.LeaderEpoch,
	}
}

func read(ctx context.Context, address, topic string, offset int64) any {
	cl := client(address)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	must(err)
	left := 0
	places := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		must(end.Err)
		left += int(end.Offset - offset)
		places[end.Partition] = kgo.NewOffset().At(offset)
	})
	consumer := client(address, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: places}))
	defer consumer.Close()
	records := []seen{}
	for len(records) < left {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, shown(record)) })
	}
	return records
}

// The name of the error that the broker answered with.
func refusal(err error) string {
	var told *kerr.Error
	if errors.As(err, &told) {
		return told.Message
	}
	if err == nil {
		return "none"
	}
	return err.Error()
}

func admin(ctx context.Context, address, topic string) any {
	cl := client(address, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer cl.Close()
	adm := kadm.NewClient(cl)
	result := seen{}

	brokers, err := adm.BrokerMetadata(ctx)
	must(err)
	result["brokers"] = len(brokers.Brokers)
	result["controller"] = brokers.Controller
	versions, err := adm.ApiVersions(ctx)
	must(err)
	own := versions[brokers.Controller]
	must(own.Err)
	_, _, produceKnown := own.KeyVersions(0)
	result["produce is known"] = produceKnown

	retention := "7200000"
	configs := map[string]*string{"retention.ms": &retention}
	validated, err := adm.ValidateCreateTopics(ctx, 3, 1, configs, topic)
	must(err)
	result["validated"] = refusal(validated[topic].Err)
	listed, err := adm.ListTopics(ctx)
	must(err)
	result["after validation"] = listed.Has(topic)
	created, err := adm.CreateTopic(ctx, 3, 1, configs, topic)
	must(err)
	result["created"] = created.NumPartitions
	_, err = adm.CreateTopic(ctx, 3, 1, configs, topic)
	result["created again"] = refusal(err)
	_, err = adm.CreateTopic(ctx, 3, 1, nil, "a b")
	result["bad name"] = refusal(err)
	more, err := adm.UpdatePartitions(ctx, 5, topic)
	must(err)
	must(more.Error())
	result["more partitions"] = len(partitions(ctx, cl, topic))
	fewer, err := adm.UpdatePartitions(ctx, 2, topic)
	must(err)
	result["fewer partitions"] = refusal(fewer.Error())

	size := "3000000"
	altered, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "segment.bytes", Value: &size},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
	}, topic)
	must(err)
	must(altered[0].Err)
	described, err := adm.DescribeTopicConfigs(ctx, topic)
	must(err)
	shownConfigs := map[string][]string{}
	for _, config := range described[0].Configs {
		shownConfigs[config.Key] = []string{config.MaybeValue(), config.Source.String()}
	}
	result["configs"] = shownConfigs

	// The second has the greatest time.
	for _, offset := range []int64{100, 300, 200} {
		record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(baseTime + offset), Value: []byte("value")}
		must(cl.ProduceSync(ctx, record).FirstErr())
	}
	offsets := map[string][]int64{}
	for name, list := range map[string]func() (kadm.ListedOffsets, error){
		"start":         func() (kadm.ListedOffsets, error) { return adm.ListStartOffsets(ctx, topic) },
		"end":           func() (kadm.ListedOffsets, error) { return adm.ListEndOffsets(ctx, topic) },
		"committed":     func() (kadm.ListedOffsets, error) { return adm.ListCommittedOffsets(ctx, topic) },
		"max timestamp": func() (kadm.ListedOffsets, error) { return adm.ListMaxTimestampOffsets(ctx, topic) },
		"by time":       func() (kadm.ListedOffsets, error) { return adm.ListOffsetsAfterMilli(ctx, baseTime+150, topic) },
	} {
		found, err := list()
		must(err)
		must(found.Error())
		at, _ := found.Lookup(topic, 0)
		offsets[name] = []int64{at.Offset, at.Timestamp}
	}
	result["offsets"] = offsets

	below := kadm.Offsets{}
	below.AddOffset(topic, 0, 2, -1)
	deleted, err := adm.DeleteRecords(ctx, below)
	must(err)
	first, _ := deleted.Lookup(topic, 0)
	must(first.Err)
	result["low watermark"] = first.LowWatermark

	gone, err := adm.DeleteTopic(ctx, topic)
	must(err)
	must(gone.Err)
	again, _ := adm.DeleteTopics(ctx, topic)
	result["deleted again"] = refusal(again[topic].Err)
	// A client remembers for a while what it was told of topics; another one has to ask.
	other := client(address)
	defer other.Close()
	listed, err = kadm.NewClient(other).ListTopics(ctx)
	must(err)
	result["after deletion"] = listed.Has(topic)
	return result
}

func many(ctx context.Context, address, topic string) any {
	producer := client(address, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	width := len(partitions(ctx, producer, topic))
	places := map[int32]kgo.Offset{}
	for n := range width {
		places[int32(n)] = kgo.NewOffset().AtStart()
	}
	consumer := client(address,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: places}),
		kgo.FetchMaxWait(100*time.Millisecond))
	defer consumer.Close()
	records := [][]any{}
	poll := func() {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, []any{record.Partition, record.Offset, string(record.Value)})
		})
	}
	for n := range 2 * width {
		record := &kgo.Record{Topic: topic, Partition: int32(n * 7 % width), Value: []byte(fmt.Sprintf("value-%d", n))}
		must(producer.ProduceSync(ctx, record).FirstErr())
		if n%20 == 0 {
			poll()
		}
	}
	for len(records) < 2*width {
		poll()
	}
	return records
}
