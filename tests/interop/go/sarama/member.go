package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var strategies = map[string]func() sarama.BalanceStrategy{
	"range":      sarama.NewBalanceStrategyRange,
	"roundrobin": sarama.NewBalanceStrategyRoundRobin,
	"sticky":     sarama.NewBalanceStrategySticky,
}

var saying sync.Mutex

func say(what any) {
	saying.Lock()
	defer saying.Unlock()
	must(json.NewEncoder(os.Stdout).Encode(what))
}

func parts(session sarama.ConsumerGroupSession) [][]any {
	rows := [][]any{}
	for topic, numbers := range session.Claims() {
		for _, number := range numbers {
			rows = append(rows, []any{topic, number})
		}
	}
	return rows
}

// Sarama calls this; each partition has a goroutine of its own.
type handler struct {
	lock    sync.Mutex
	session sarama.ConsumerGroupSession
	next    map[string]map[int32]int64
}

func (each *handler) Setup(session sarama.ConsumerGroupSession) error {
	each.lock.Lock()
	defer each.lock.Unlock()
	each.session, each.next = session, map[string]map[int32]int64{}
	say(seen{"event": "assigned", "of": parts(session)})
	say(seen{"has": parts(session)})
	return nil
}

func (each *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	each.lock.Lock()
	defer each.lock.Unlock()
	each.session = nil
	say(seen{"event": "revoked", "of": parts(session)})
	say(seen{"has": [][]any{}})
	return nil
}

func (each *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		each.lock.Lock()
		session.MarkMessage(message, "by Sarama")
		if each.next[message.Topic] == nil {
			each.next[message.Topic] = map[int32]int64{}
		}
		each.next[message.Topic][message.Partition] = message.Offset + 1
		each.lock.Unlock()
		say(seen{"read": [][]any{{message.Topic, message.Partition, message.Offset}}})
	}
	return nil
}

func (each *handler) commit() {
	each.lock.Lock()
	defer each.lock.Unlock()
	each.session.Commit()
	rows := [][]any{}
	for topic, numbers := range each.next {
		for number, offset := range numbers {
			rows = append(rows, []any{topic, number, offset})
		}
	}
	say(seen{"committed": rows})
}

// A member of a group; what it says and hears is drawn in java/GroupMember.java.
func member(address, topic string, config *sarama.Config, group, strategy string) {
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[strategy]()}
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	consumers, err := sarama.NewConsumerGroup([]string{address}, group, config)
	must(err)
	ctx, leave := context.WithCancel(context.Background())
	each := &handler{}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			switch lines.Text() {
			case "commit":
				each.commit()
			case "leave":
				leave()
			}
		}
	}()
	for ctx.Err() == nil {
		must(consumers.Consume(ctx, []string{topic}, each))
	}
	must(consumers.Close())
	say(seen{"left": true})
}
