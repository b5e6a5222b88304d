package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Those behind a colon have the broker assign.
var balancers = map[string][]kgo.GroupOpt{
	"range":              {kgo.Balancers(kgo.RangeBalancer())},
	"roundrobin":         {kgo.Balancers(kgo.RoundRobinBalancer())},
	"sticky":             {kgo.Balancers(kgo.StickyBalancer())},
	"cooperative-sticky": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
	"consumer:range":     {kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer()},
	"consumer:uniform":   {kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()},
}

// What the group gave to this member, and a way to say so.
type possession struct {
	lock  sync.Mutex
	parts map[string]map[int32]bool
}

func (has *possession) change(event string, changed map[string][]int32, holds bool) {
	has.lock.Lock()
	defer has.lock.Unlock()
	of := [][]any{}
	for topic, numbers := range changed {
		if has.parts[topic] == nil {
			has.parts[topic] = map[int32]bool{}
		}
		for _, number := range numbers {
			of = append(of, []any{topic, number})
			if holds {
				has.parts[topic][number] = true
			} else {
				delete(has.parts[topic], number)
			}
		}
	}
	say(seen{"event": event, "of": of})
	all := [][]any{}
	for topic, numbers := range has.parts {
		for number := range numbers {
			all = append(all, []any{topic, number})
		}
	}
	sort.Slice(all, func(one, other int) bool { return fmt.Sprint(all[one]) < fmt.Sprint(all[other]) })
	say(seen{"has": all})
}

var saying sync.Mutex

func say(what any) {
	saying.Lock()
	defer saying.Unlock()
	must(json.NewEncoder(os.Stdout).Encode(what))
}

// A member of a group; what it says and hears is drawn in java/GroupMember.java.
func member(ctx context.Context, address, group, topic, balancer string) {
	has := &possession{parts: map[string]map[int32]bool{}}
	changed := func(event string, holds bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) { has.change(event, parts, holds) }
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(changed("assigned", true)), kgo.OnPartitionsRevoked(changed("revoked", false)),
		kgo.OnPartitionsLost(changed("lost", false)),
	}
	for _, option := range balancers[balancer] {
		options = append(options, option)
	}
	cl := client(address, options...)
	commands := make(chan string)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			commands <- lines.Text()
		}
	}()
	for {
		polling, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		records := [][]any{}
		cl.PollFetches(polling).EachRecord(func(record *kgo.Record) {
			records = append(records, []any{record.Topic, record.Partition, record.Offset})
		})
		cancel()
		if len(records) > 0 {
			say(seen{"read": records})
		}
		select {
		case command := <-commands:
			switch command {
			case "commit":
				must(cl.CommitUncommittedOffsets(ctx))
				rows := [][]any{}
				for name, numbers := range cl.CommittedOffsets() {
					for number, at := range numbers {
						rows = append(rows, []any{name, number, at.Offset})
					}
				}
				say(seen{"committed": rows})
			case "leave":
				cl.Close()
				say(seen{"left": true})
				return
			}
		default:
		}
	}
}
