package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"
)

var someAttributes = map[string]types.MessageAttributeValue{
	"colour":  {DataType: aws.String("String"), StringValue: aws.String("blå")},
	"count":   {DataType: aws.String("Number.int"), StringValue: aws.String("-12.5")},
	"picture": {DataType: aws.String("Binary.png"), BinaryValue: []byte{0, 1, 254, 255}},
}

// Of these three, by the rule in the documentation of SQS.
const someAttributesMD5 = "4c3fb5a6b6602ecc1e668d5c2b8b2312"

// What the AWS SDK for Go (version 2) is asked to do.
var sdkScenarios = map[string]scenario{
	"sends, receives and deletes a message": func(ctx context.Context) {
		url := makeQueue(ctx, nil)

		sent := must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("two coffees"),
		}))
		message := receiveOne(ctx, url, func(input *sqs.ReceiveMessageInput) {
			input.MessageSystemAttributeNames = []types.MessageSystemAttributeName{"All"}
		})
		must(server(ctx).DeleteMessage(ctx, &sqs.DeleteMessageInput{
			QueueUrl: &url, ReceiptHandle: message.ReceiptHandle,
		}))

		equal(*message.Body, "two coffees")
		equal(*message.MessageId, *sent.MessageId)
		equal(*message.MD5OfBody, *sent.MD5OfMessageBody)
		equal(message.Attributes["ApproximateReceiveCount"], "1")
		check(message.Attributes["SentTimestamp"] != "", "no time of sending")
		equal(countsOf(ctx, url), [3]int{0, 0, 0})
	},

	"carries every character SQS allows": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		body := "\t\n\r ~\u007f\u0085\u00e9\u2028\ud7ff\ue000\ufffd\U00010000\U0001f980\U0010ffff<&\"'\\/>"

		send(ctx, url, body)

		equal(*receiveOne(ctx, url).Body, body)
	},

	"carries a message of 1 MiB": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		body := strings.Repeat("x", 1024*1024)

		send(ctx, url, body)

		check(*receiveOne(ctx, url).Body == body, "another body came")
	},

	"carries string, number and binary attributes": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		named := func(names ...string) func(*sqs.ReceiveMessageInput) {
			return func(input *sqs.ReceiveMessageInput) {
				// A timeout of 0 is not sent by this SDK, so the message is made visible afterwards.
				input.MessageAttributeNames = names
			}
		}
		again := func(message types.Message) types.Message {
			hide(ctx, url, message, 0)
			return message
		}

		sent := must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("m"), MessageAttributes: someAttributes,
		}))
		all := again(receiveOne(ctx, url, named("All")))
		some := again(receiveOne(ctx, url, named("pic.*", "colour")))
		none := receiveOne(ctx, url)

		equal(*sent.MD5OfMessageAttributes, someAttributesMD5)
		equal(*all.MD5OfMessageAttributes, someAttributesMD5)
		equal(all.MessageAttributes, someAttributes)
		equal(slices.Sorted(maps.Keys(some.MessageAttributes)), []string{"colour", "picture"})
		equal(len(none.MessageAttributes), 0)
	},

	"refuses an answer with a wrong checksum": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		spoiled := client(ctx, os.Getenv("SQS_SPOILED_ENDPOINT"))

		_, sendError := spoiled.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("m"),
		})
		_, batchError := spoiled.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: &url, Entries: entries("m"),
		})
		_, receiveError := spoiled.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url})

		for _, err := range []error{sendError, batchError, receiveError} {
			check(err != nil && strings.Contains(err.Error(), "checksum"), "not refused: %v", err)
		}
	},

	"sends a batch of which one entry fails": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		batch := entries("1", "\u0001", "3", "4")
		batch[0].MessageAttributes = someAttributes
		batch[2].DelaySeconds = 901

		answer := must(server(ctx).SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: &url, Entries: batch,
		}))

		equal(len(answer.Successful), 2)
		equal([]string{*answer.Successful[0].Id, *answer.Successful[1].Id}, []string{"0", "3"})
		equal(*answer.Successful[0].MD5OfMessageAttributes, someAttributesMD5)
		equal(failuresOf(answer.Failed), []string{
			"1 InvalidMessageContents true", "2 InvalidParameterValue true",
		})
		equal(slices.Sorted(slices.Values(bodiesOf(receiveAll(ctx, url, 2)))), []string{"1", "4"})
	},

	"hides and deletes in batches of which one entry fails": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		send(ctx, url, "0", "1")
		handles := []*string{}
		for _, message := range receiveAll(ctx, url, 2) {
			handles = append(handles, message.ReceiptHandle)
		}
		handles = append(handles, aws.String("garbage"))
		var hides []types.ChangeMessageVisibilityBatchRequestEntry
		var deletes []types.DeleteMessageBatchRequestEntry
		for place, handle := range handles {
			id := aws.String(fmt.Sprint(place))
			hides = append(hides, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: id, ReceiptHandle: handle, VisibilityTimeout: 300,
			})
			deletes = append(deletes, types.DeleteMessageBatchRequestEntry{Id: id, ReceiptHandle: handle})
		}

		hidden := must(server(ctx).ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
			QueueUrl: &url, Entries: hides,
		}))
		deleted := must(server(ctx).DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
			QueueUrl: &url, Entries: deletes,
		}))

		equal([]int{len(hidden.Successful), len(deleted.Successful)}, []int{2, 2})
		equal(failuresOf(hidden.Failed), []string{"2 ReceiptHandleIsInvalid true"})
		equal(failuresOf(deleted.Failed), []string{"2 ReceiptHandleIsInvalid true"})
		equal(countsOf(ctx, url), [3]int{0, 0, 0})
	},

	"keeps the order of a FIFO group": func(ctx context.Context) {
		url := makeFIFOQueue(ctx, true)
		numbers := []*big.Int{}
		for _, body := range []string{"a1", "b1", "a2", "b2", "a3"} {
			sent := must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: &body, MessageGroupId: aws.String(body[:1]),
			}))
			number, is := new(big.Int).SetString(*sent.SequenceNumber, 10)
			check(is, "no number: %s", *sent.SequenceNumber)
			numbers = append(numbers, number)
		}

		first := receiveOne(ctx, url, func(input *sqs.ReceiveMessageInput) {
			input.MessageSystemAttributeNames = []types.MessageSystemAttributeName{"All"}
		})
		others := receiveAll(ctx, url, 2)
		blocked := must(server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url}))
		must(server(ctx).DeleteMessage(ctx, &sqs.DeleteMessageInput{
			QueueUrl: &url, ReceiptHandle: first.ReceiptHandle,
		}))
		next := receiveAll(ctx, url, 2)

		check(slices.IsSortedFunc(numbers, (*big.Int).Cmp), "numbers do not grow: %v", numbers)
		equal(*first.Body, "a1")
		equal(first.Attributes["MessageGroupId"], "a")
		equal(bodiesOf(others), []string{"b1", "b2"})
		equal(bodiesOf(blocked.Messages), []string{})
		equal(bodiesOf(next), []string{"a2", "a3"})
	},

	"stores a FIFO duplicate once": func(ctx context.Context) {
		url := makeFIFOQueue(ctx, false)
		sendSame := func(body string) *sqs.SendMessageOutput {
			return must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: &body,
				MessageGroupId: aws.String("g"), MessageDeduplicationId: aws.String("same"),
			}))
		}

		one, two := sendSame("one"), sendSame("two")

		equal(*two.MessageId, *one.MessageId)
		equal(*two.SequenceNumber, *one.SequenceNumber)
		received := must(server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10,
		}))
		equal(bodiesOf(received.Messages), []string{"one"})
	},

	"is woken from a long poll by a send": func(ctx context.Context) {
		url := makeQueue(ctx, nil)

		woken := make(chan []string, 1)
		failed := make(chan error, 1)
		go func() {
			answer, err := server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
				QueueUrl: &url, WaitTimeSeconds: 20,
			})
			if err != nil {
				failed <- err
				return
			}
			woken <- bodiesOf(answer.Messages)
		}()
		select {
		case bodies := <-woken:
			panic(fmt.Sprint("woken before anything was sent: ", bodies))
		case err := <-failed:
			panic(err)
		case <-time.After(500 * time.Millisecond):
		}
		send(ctx, url, "wake up")

		select {
		case bodies := <-woken:
			equal(bodies, []string{"wake up"})
		case err := <-failed:
			panic(err)
		}
	},

	"gets nothing from an empty queue": func(ctx context.Context) {
		url := makeQueue(ctx, attributes{"ReceiveMessageWaitTimeSeconds": "1"})

		for _, seconds := range []int32{0, 1} {
			answer := must(server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
				QueueUrl: &url, WaitTimeSeconds: seconds,
			}))
			check(answer.Messages == nil, "messages: %v", answer.Messages)
		}
	},

	"leaves no message to a poll it gave up": func(ctx context.Context) {
		url := makeQueue(ctx, nil)

		polling, giveUp := context.WithTimeout(ctx, 500*time.Millisecond)
		defer giveUp()
		_, err := server(ctx).ReceiveMessage(polling, &sqs.ReceiveMessageInput{
			QueueUrl: &url, WaitTimeSeconds: 20,
		})
		check(errors.Is(err, context.DeadlineExceeded), "not given up: %v", err)
		time.Sleep(time.Second) // the server sees soon that nobody listens any more
		send(ctx, url, "for the next")

		equal(*receiveOne(ctx, url).Body, "for the next")
	},

	"changes the visibility of a message": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		send(ctx, url, "m")

		first := receiveOne(ctx, url, func(input *sqs.ReceiveMessageInput) { input.VisibilityTimeout = 300 })
		equal(countsOf(ctx, url), [3]int{0, 1, 0})
		hide(ctx, url, first, 0)
		second := receiveOne(ctx, url, func(input *sqs.ReceiveMessageInput) {
			input.MessageSystemAttributeNames = []types.MessageSystemAttributeName{
				types.MessageSystemAttributeNameApproximateReceiveCount,
			}
		})

		equal(*second.MessageId, *first.MessageId)
		equal(second.Attributes, attributes{"ApproximateReceiveCount": "2"})
	},

	"creates, finds, lists and deletes queues": func(ctx context.Context) {
		prefix := unique()
		urls := []string{}
		for _, letter := range []string{"a", "b", "c"} {
			created := must(server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{
				QueueName: aws.String(prefix + "-" + letter),
			}))
			urls = append(urls, *created.QueueUrl)
		}

		found := must(server(ctx).GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(prefix + "-a")}))
		pages := sqs.NewListQueuesPaginator(server(ctx), &sqs.ListQueuesInput{
			QueueNamePrefix: &prefix, MaxResults: aws.Int32(2),
		})
		listed, sizes := []string{}, []int{}
		for pages.HasMorePages() {
			page := must(pages.NextPage(ctx))
			listed = append(listed, page.QueueUrls...)
			sizes = append(sizes, len(page.QueueUrls))
		}
		for _, url := range urls {
			must(server(ctx).DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url}))
		}
		left := must(server(ctx).ListQueues(ctx, &sqs.ListQueuesInput{QueueNamePrefix: &prefix}))

		equal(*found.QueueUrl, urls[0])
		equal(sizes, []int{2, 1})
		equal(slices.Sorted(slices.Values(listed)), urls)
		equal(len(left.QueueUrls), 0)
	},

	"reads and sets queue attributes": func(ctx context.Context) {
		url := makeQueue(ctx, attributes{"VisibilityTimeout": "45", "DelaySeconds": "2"})

		must(server(ctx).SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: &url, Attributes: attributes{"DelaySeconds": "0", "MessageRetentionPeriod": "120"},
		}))
		all := attributesOf(ctx, url, types.QueueAttributeNameAll)
		one := attributesOf(ctx, url, types.QueueAttributeNameDelaySeconds)

		equal(all["VisibilityTimeout"], "45")
		equal(all["MessageRetentionPeriod"], "120")
		check(strings.HasPrefix(all["QueueArn"], "arn:aws:sqs:"), "no ARN: %s", all["QueueArn"])
		equal(one, attributes{"DelaySeconds": "0"})
	},

	"tags a queue": func(ctx context.Context) {
		created := must(server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{
			QueueName: aws.String(unique()), Tags: attributes{"team": "harbour"},
		}))
		url := created.QueueUrl

		must(server(ctx).TagQueue(ctx, &sqs.TagQueueInput{
			QueueUrl: url, Tags: attributes{"stage": "test", "cost": "µ 1/2"},
		}))
		must(server(ctx).UntagQueue(ctx, &sqs.UntagQueueInput{QueueUrl: url, TagKeys: []string{"stage"}}))

		tags := must(server(ctx).ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: url})).Tags
		equal(tags, attributes{"team": "harbour", "cost": "µ 1/2"})
	},

	"purges a queue": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		send(ctx, url, "m")

		must(server(ctx).PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: &url}))

		eventually(func() bool { return countsOf(ctx, url) == [3]int{0, 0, 0} })
	},

	"adds and removes a permission": func(ctx context.Context) {
		url := makeQueue(ctx, nil)

		must(server(ctx).AddPermission(ctx, &sqs.AddPermissionInput{
			QueueUrl: &url, Label: aws.String("reader"),
			AWSAccountIds: []string{"123456789012"}, Actions: []string{"ReceiveMessage"},
		}))
		with := attributesOf(ctx, url, types.QueueAttributeNamePolicy)["Policy"]
		must(server(ctx).RemovePermission(ctx, &sqs.RemovePermissionInput{
			QueueUrl: &url, Label: aws.String("reader"),
		}))
		without := attributesOf(ctx, url, types.QueueAttributeNamePolicy)["Policy"]

		check(json.Valid([]byte(with)) && strings.Contains(with, "reader"), "policy: %s", with)
		check(!strings.Contains(without, "reader"), "policy: %s", without)
	},

	"moves dead letters back": func(ctx context.Context) {
		url, dead, deadARN := makePipe(ctx)
		send(ctx, url, "m")
		hide(ctx, url, receiveOne(ctx, url), 0)
		answer := must(server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url}))
		equal(len(answer.Messages), 0)
		eventually(func() bool { return countsOf(ctx, dead)[0] == 1 })

		sources := must(server(ctx).ListDeadLetterSourceQueues(ctx, &sqs.ListDeadLetterSourceQueuesInput{
			QueueUrl: &dead,
		}))
		task := must(server(ctx).StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &deadARN}))
		back := receiveOne(ctx, url)
		eventually(func() bool { return *taskOf(ctx, deadARN).Status == "COMPLETED" })

		equal(sources.QueueUrls, []string{url})
		check(*task.TaskHandle != "", "no handle")
		equal(*back.Body, "m")
		equal(taskOf(ctx, deadARN).ApproximateNumberOfMessagesMoved, int64(1))
	},

	"cancels a move task": func(ctx context.Context) {
		_, dead, deadARN := makePipe(ctx)
		must(server(ctx).SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: &dead, Entries: entries("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
		}))

		started := must(server(ctx).StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{
			SourceArn: &deadARN, DestinationArn: aws.String(arnOf(ctx, makeQueue(ctx, nil))),
			MaxNumberOfMessagesPerSecond: aws.Int32(1),
		}))
		running := taskOf(ctx, deadARN)
		cancelled := must(server(ctx).CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{
			TaskHandle: started.TaskHandle,
		}))

		equal(*running.Status, "RUNNING")
		equal(*running.TaskHandle, *started.TaskHandle)
		check(cancelled.ApproximateNumberOfMessagesMoved < 10, "all moved")
		eventually(func() bool { return *taskOf(ctx, deadARN).Status == "CANCELLED" })
	},

	"stores a retried send once": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		lossy := client(ctx, os.Getenv("SQS_LOSSY_ENDPOINT"))

		sent := must(lossy.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("m"),
		}))

		equal(attemptsOf(sent.ResultMetadata), 2)
		equal(countsOf(ctx, url), [3]int{1, 0, 0})
		equal(*receiveOne(ctx, url).MessageId, *sent.MessageId)
	},

	"stores a retried batch once": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		lossy := client(ctx, os.Getenv("SQS_LOSSY_ENDPOINT"))

		sent := must(lossy.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: &url, Entries: entries("same", "same"),
		}))

		equal(attemptsOf(sent.ResultMetadata), 2)
		ids, received := []string{}, []string{}
		for _, entry := range sent.Successful {
			ids = append(ids, *entry.MessageId)
		}
		for _, message := range receiveAll(ctx, url, 2) {
			received = append(received, *message.MessageId)
		}
		equal(slices.Sorted(slices.Values(received)), slices.Sorted(slices.Values(ids)))
		equal(countsOf(ctx, url), [3]int{0, 2, 0})
	},

	"takes its endpoint from the environment": func(ctx context.Context) {
		fromEnvironment := sqs.NewFromConfig(must(config.LoadDefaultConfig(ctx)))

		created := must(fromEnvironment.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(unique())}))
		must(fromEnvironment.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: created.QueueUrl, MessageBody: aws.String("m"),
		}))

		check(strings.HasPrefix(*created.QueueUrl, os.Getenv("AWS_ENDPOINT_URL_SQS")+"/"), "%s", *created.QueueUrl)
		equal(countsOf(ctx, *created.QueueUrl), [3]int{1, 0, 0})
	},

	"sends and receives many at a time": func(ctx context.Context) {
		url := makeQueue(ctx, nil)
		shared := server(ctx)
		const count = 200
		var failures sync.Map
		inParallel := func(workers int, work func(number int) error) {
			var done sync.WaitGroup
			for number := range workers {
				done.Add(1)
				go func() {
					defer done.Done()
					if err := work(number); err != nil {
						failures.Store(number, err)
					}
				}()
			}
			done.Wait()
			failures.Range(func(_, err any) bool { panic(err) })
		}

		inParallel(count, func(number int) error {
			_, err := shared.SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: aws.String(fmt.Sprint(number)),
			})
			return err
		})
		var received sync.Map
		left := func() bool {
			got := 0
			received.Range(func(_, _ any) bool { got++; return true })
			return got < count
		}
		inParallel(8, func(int) error {
			for left() {
				answer, err := shared.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
					QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1,
				})
				if err != nil {
					return err
				}
				for _, message := range answer.Messages {
					received.Store(*message.Body, true)
					_, err := shared.DeleteMessage(ctx, &sqs.DeleteMessageInput{
						QueueUrl: &url, ReceiptHandle: message.ReceiptHandle,
					})
					if err != nil {
						return err
					}
				}
			}
			return nil
		})

		equal(countsOf(ctx, url), [3]int{0, 0, 0})
	},
}

// entries gives a batch whose ids are the places of the bodies.
func entries(bodies ...string) []types.SendMessageBatchRequestEntry {
	batch := []types.SendMessageBatchRequestEntry{}
	for place, body := range bodies {
		batch = append(batch, types.SendMessageBatchRequestEntry{
			Id: aws.String(fmt.Sprint(place)), MessageBody: &body,
		})
	}
	return batch
}

func failuresOf(failed []types.BatchResultErrorEntry) []string {
	failures := []string{}
	for _, entry := range failed {
		failures = append(failures, fmt.Sprint(*entry.Id, " ", *entry.Code, " ", entry.SenderFault))
	}
	return failures
}

func hide(ctx context.Context, url string, message types.Message, seconds int32) {
	must(server(ctx).ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: seconds,
	}))
}

func taskOf(ctx context.Context, source string) types.ListMessageMoveTasksResultEntry {
	answer := must(server(ctx).ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &source}))
	check(len(answer.Results) == 1, "%d tasks", len(answer.Results))
	return answer.Results[0]
}

func attemptsOf(metadata middleware.Metadata) int {
	results, is := retry.GetAttemptResults(metadata)
	check(is, "the SDK counted no attempts")
	return len(results.Results)
}
