package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const patience = 30 * time.Second

type attributes = map[string]string

// must gives the value of a call that may not fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}

func check(is bool, what string, values ...any) {
	if !is {
		panic(fmt.Sprintf(what, values...))
	}
}

// client gives a client of an endpoint; region and credentials are those of the environment unless options say else.
func client(ctx context.Context, endpoint string, options ...func(*config.LoadOptions) error) *sqs.Client {
	return sqs.NewFromConfig(must(config.LoadDefaultConfig(ctx, options...)), func(o *sqs.Options) {
		o.BaseEndpoint = aws.String(endpoint)
	})
}

func server(ctx context.Context) *sqs.Client {
	return client(ctx, os.Getenv("SQS_ENDPOINT"))
}

// unique gives a queue name nobody used before.
func unique() string {
	return "go-" + rand.Text()
}

func makeQueue(ctx context.Context, given attributes) string {
	created := must(server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName: aws.String(unique()), Attributes: given,
	}))
	return *created.QueueUrl
}

func makeFIFOQueue(ctx context.Context, contentBased bool) string {
	created := must(server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName: aws.String(unique() + ".fifo"),
		Attributes: attributes{
			"FifoQueue": "true", "ContentBasedDeduplication": strconv.FormatBool(contentBased),
		},
	}))
	return *created.QueueUrl
}

func attributesOf(ctx context.Context, url string, names ...types.QueueAttributeName) attributes {
	return must(server(ctx).GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: names,
	})).Attributes
}

func arnOf(ctx context.Context, url string) string {
	return attributesOf(ctx, url, types.QueueAttributeNameQueueArn)["QueueArn"]
}

// makePipe gives a queue whose messages are dead after one delivery, and the queue they go to.
func makePipe(ctx context.Context) (url, dead, deadARN string) {
	dead = makeQueue(ctx, nil)
	deadARN = arnOf(ctx, dead)
	policy := must(json.Marshal(map[string]any{"deadLetterTargetArn": deadARN, "maxReceiveCount": 1}))
	return makeQueue(ctx, attributes{"RedrivePolicy": string(policy)}), dead, deadARN
}

// countsOf gives how many messages are visible, in flight and delayed.
func countsOf(ctx context.Context, url string) [3]int {
	names := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	}
	given := attributesOf(ctx, url, names...)
	var counts [3]int
	for place, name := range names {
		counts[place] = must(strconv.Atoi(given[string(name)]))
	}
	return counts
}

func send(ctx context.Context, url string, bodies ...string) {
	for _, body := range bodies {
		must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}))
	}
}

func bodiesOf(messages []types.Message) []string {
	bodies := []string{}
	for _, message := range messages {
		bodies = append(bodies, *message.Body)
	}
	return bodies
}

// receiveOne gives the next message; it fails when none comes.
func receiveOne(ctx context.Context, url string, options ...func(*sqs.ReceiveMessageInput)) types.Message {
	input := &sqs.ReceiveMessageInput{QueueUrl: &url, WaitTimeSeconds: 10}
	for _, option := range options {
		option(input)
	}
	messages := must(server(ctx).ReceiveMessage(ctx, input)).Messages
	check(len(messages) == 1, "no message came")
	return messages[0]
}

// receiveAll gives messages received in one or several calls; it fails when fewer come in time.
func receiveAll(ctx context.Context, url string, count int) []types.Message {
	var messages []types.Message
	deadline := time.Now().Add(patience)
	for len(messages) < count {
		check(time.Now().Before(deadline), "only %d of %d messages came", len(messages), count)
		messages = append(messages, must(server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 2,
		})).Messages...)
	}
	return messages
}

// eventually asks until the answer is true; it fails when it does not become so in time.
func eventually(question func() bool) {
	deadline := time.Now().Add(patience)
	for !question() {
		check(time.Now().Before(deadline), "never came true")
		time.Sleep(50 * time.Millisecond)
	}
}
