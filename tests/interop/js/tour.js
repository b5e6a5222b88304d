// Walks through what KafkaJS can ask of a broker and prints what it saw as JSON.
//
//   tour.js ADDRESS produce TOPIC CODEC COUNT     idempotent, with headers and times of its own
//   tour.js ADDRESS admin TOPIC                   the life of a topic
//   tour.js ADDRESS member TOPIC GROUP            a member of a group, until it is told to leave

'use strict'

const readline = require('node:readline')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const TIME = 1_700_000_000_000
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }

async function produce(kafka, topic, codec, count) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const answers = []
  for (let first = 0; first < count; first += 50) {
    const messages = []
    for (let number = first; number < Math.min(first + 50, count); number++) {
      messages.push({
        partition: 0,
        timestamp: String(TIME + number),
        key: number % 10 === 3 ? null : `key-${number}`,
        value: number % 10 === 5 ? null : `value-${number}`,
        headers: { number: String(number) },
      })
    }
    answers.push(...(await producer.send({ topic, messages, acks: -1, compression: CODECS[codec] })))
  }
  await producer.disconnect()
  return answers.map(({ partition, baseOffset, errorCode }) => [partition, Number(baseOffset), errorCode])
}

// The kind of the broker's error; some calls wrap it with one a topic.
async function refusal(attempt) {
  try {
    await attempt
    return 'none'
  } catch (error) {
    const inner = error.errors ? error.errors[0] : error
    return inner.type || inner.message
  }
}

async function admin(kafka, topic) {
  const seen = {}
  const admin = kafka.admin()
  await admin.connect()
  const cluster = await admin.describeCluster()
  seen.cluster = { controller: cluster.controller, brokers: cluster.brokers.map(({ host, port }) => `${host}:${port}`) }

  const wanted = { topic, numPartitions: 3, configEntries: [{ name: 'retention.ms', value: '7200000' }] }
  seen.validated = await admin.createTopics({ validateOnly: true, waitForLeaders: false, topics: [wanted] })
  seen['after validation'] = (await admin.listTopics()).includes(topic)
  seen.created = await admin.createTopics({ waitForLeaders: true, topics: [wanted] })
  seen['created again'] = await admin.createTopics({ topics: [wanted] })
  seen['bad name'] = await refusal(admin.createTopics({ topics: [{ topic: 'a b' }] }))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
  seen['fewer partitions'] = await refusal(admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }))
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
  seen['more partitions'] = topics[0].partitions.map(({ partitionId, leader }) => [partitionId, leader])
    .sort((one, other) => one[0] - other[0])

  const { resources } = await admin.describeConfigs({
    includeSynonyms: true,
    resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms', 'segment.bytes'] }],
  })
  seen.configs = Object.fromEntries(
    resources[0].configEntries.map(({ configName, configValue, configSource }) => [configName, [configValue, configSource]])
  )

  const producer = kafka.producer()
  await producer.connect()
  for (let number = 0; number < 4; number++) {
    await producer.send({ topic, messages: [{ partition: 0, timestamp: String(TIME + number), value: 'value' }] })
  }
  await producer.disconnect()
  const first = (rows) => rows.filter(({ partition }) => partition === 0).map(({ partition, ...rest }) => rest)[0]
  seen.offsets = first(await admin.fetchTopicOffsets(topic))
  seen['by time'] = first(await admin.fetchTopicOffsetsByTimestamp(topic, TIME + 2))
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] })
  seen['offsets after'] = first(await admin.fetchTopicOffsets(topic))

  await admin.deleteTopics({ topics: [topic] })
  seen['after deletion'] = (await admin.listTopics()).includes(topic)
  await admin.disconnect()
  return seen
}

// A member of a group; what it says and hears is drawn in java/GroupMember.java.
async function member(kafka, topic, groupId) {
  const say = (what) => console.log(JSON.stringify(what))
  const consumer = kafka.consumer({ groupId, heartbeatInterval: 500, maxWaitTimeInMs: 100 })
  const next = new Map()
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const has = Object.entries(payload.memberAssignment).flatMap(([name, numbers]) => numbers.map((each) => [name, each]))
    next.clear()
    say({ event: 'assigned', of: has })
    say({ has })
  })
  consumer.on(consumer.events.CRASH, ({ payload }) => console.log(String(payload.error)))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      next.set(partition, Number(message.offset) + 1)
      say({ read: [[topic, partition, Number(message.offset)]] })
    },
  })
  for await (const command of readline.createInterface({ input: process.stdin })) {
    if (command === 'commit') {
      const rows = [...next].map(([partition, offset]) => ({ topic, partition, offset: String(offset) }))
      await consumer.commitOffsets(rows)
      say({ committed: rows.map(({ topic, partition, offset }) => [topic, partition, Number(offset)]) })
    } else if (command === 'leave') {
      break
    }
  }
  await consumer.disconnect()
  say({ left: true })
  process.exit(0)
}

async function main() {
  const [address, what, topic, ...rest] = process.argv.slice(2)
  const kafka = new Kafka({ clientId: 'interop', brokers: [address], logLevel: logLevel.NOTHING })
  if (what === 'member') return member(kafka, topic, rest[0])
  const parts = { produce: () => produce(kafka, topic, rest[0], Number(rest[1])), admin: () => admin(kafka, topic) }
  console.log(JSON.stringify(await parts[what]()))
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
