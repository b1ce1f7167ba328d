package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// What KEDA's aws-sqs-queue scaler asks: one GetQueueAttributes, whose counts it adds up. Fields are named as in a
// trigger; region and credentials are given, the queue is named by its URL or its name.
type kedaTrigger struct {
	queueURL        string
	awsRegion       string
	awsEndpoint     string
	scaleOnInFlight bool
	scaleOnDelayed  bool
}

func (trigger kedaTrigger) length(ctx context.Context) (int, error) {
	given := must(config.LoadDefaultConfig(ctx, config.WithRegion(trigger.awsRegion)))
	given.Credentials = aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(
		os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), "",
	))
	scaler := sqs.NewFromConfig(given, func(o *sqs.Options) {
		if trigger.awsEndpoint != "" {
			o.BaseEndpoint = &trigger.awsEndpoint
		}
	})
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages}
	if trigger.scaleOnInFlight {
		names = append(names, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)
	}
	if trigger.scaleOnDelayed {
		names = append(names, types.QueueAttributeNameApproximateNumberOfMessagesDelayed)
	}
	answer, err := scaler.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &trigger.queueURL, AttributeNames: names,
	})
	if err != nil {
		return 0, err
	}
	sum := 0
	for _, name := range names {
		value, is := answer.Attributes[string(name)]
		check(is, "%s is not in the answer", name)
		sum += must(strconv.Atoi(value))
	}
	equal(len(answer.Attributes), len(names))
	return sum, nil
}

// triggerOf gives the trigger of a queue, with KEDA's defaults.
func triggerOf(url string) kedaTrigger {
	return kedaTrigger{
		queueURL:        url,
		awsRegion:       os.Getenv("AWS_REGION"),
		awsEndpoint:     os.Getenv("SQS_ENDPOINT"),
		scaleOnInFlight: true,
	}
}

// busyQueue gives a queue with 4 visible messages, 2 in flight and 1 delayed.
func busyQueue(ctx context.Context) string {
	url := makeQueue(ctx, attributes{"VisibilityTimeout": "300"})
	send(ctx, url, "0", "1", "2", "3", "4", "5")
	receiveOne(ctx, url)
	receiveOne(ctx, url)
	must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &url, MessageBody: aws.String("later"), DelaySeconds: 900,
	}))
	return url
}

var kedaScenarios = map[string]scenario{
	"counts visible messages and those in flight": func(ctx context.Context) {
		equal(must(triggerOf(busyQueue(ctx)).length(ctx)), 6)
	},

	"counts visible messages only, with scaleOnInFlight off": func(ctx context.Context) {
		trigger := triggerOf(busyQueue(ctx))
		trigger.scaleOnInFlight = false

		equal(must(trigger.length(ctx)), 4)
	},

	"counts delayed messages, with scaleOnDelayed on": func(ctx context.Context) {
		trigger := triggerOf(busyQueue(ctx))
		trigger.scaleOnDelayed = true

		equal(must(trigger.length(ctx)), 7)
	},

	"counts none in an empty queue, so that nothing runs": func(ctx context.Context) {
		trigger := triggerOf(makeQueue(ctx, nil))
		trigger.scaleOnDelayed = true

		equal(must(trigger.length(ctx)), 0)
	},

	"counts a FIFO queue": func(ctx context.Context) {
		url := makeFIFOQueue(ctx, true)
		for number := range 3 {
			body := fmt.Sprint(number)
			must(server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: &body, MessageGroupId: aws.String("g"),
			}))
		}
		receiveOne(ctx, url)

		equal(must(triggerOf(url).length(ctx)), 3)
	},

	"finds a queue by its name in place of the URL": func(ctx context.Context) {
		equal(must(triggerOf(path.Base(busyQueue(ctx))).length(ctx)), 6)
	},

	// The queueURL of a trigger is often what the application's pods use, while awsEndpoint is what the operator uses.
	"finds a queue by a URL with another host than awsEndpoint": func(ctx context.Context) {
		url := busyQueue(ctx)
		elsewhere := "http://sqs.example.com/" + path.Base(path.Dir(url)) + "/" + path.Base(url)

		equal(must(triggerOf(elsewhere).length(ctx)), 6)
	},

	"asks where AWS_ENDPOINT_URL_SQS says, without awsEndpoint": func(ctx context.Context) {
		trigger := triggerOf(busyQueue(ctx))
		trigger.awsEndpoint = ""

		equal(must(trigger.length(ctx)), 6)
	},

	"is refused with another awsRegion than the server's": func(ctx context.Context) {
		trigger := triggerOf(makeQueue(ctx, nil))
		trigger.awsRegion = "eu-north-7"

		_, err := trigger.length(ctx)

		refusedAs(err, 403, "SignatureDoesNotMatch", "InvalidSignatureException")
	},

	"learns that the queue does not exist": func(ctx context.Context) {
		_, err := triggerOf(makeQueue(ctx, nil) + "-missing").length(ctx)

		var missing *types.QueueDoesNotExist
		check(errors.As(err, &missing), "another error: %v", err)
	},
}
