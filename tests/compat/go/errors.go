package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

// How an error comes about: what is called last must be refused with it.
type cause func(ctx context.Context) error

// catches gives the scenario that an error is found by its class, as errors.As does.
func catches[E smithy.APIError](cause cause) scenario {
	return func(ctx context.Context) {
		err := cause(ctx)
		check(err != nil, "not refused")
		var caught E
		check(errors.As(err, &caught), "another class: %v", err)
		check(caught.ErrorMessage() != "", "without a message")
		equal(caught.ErrorFault(), smithy.FaultClient)
		var response *awshttp.ResponseError
		check(errors.As(err, &response) && response.ServiceRequestID() != "", "without a request id: %v", err)
	}
}

func sendBatch(batch ...types.SendMessageBatchRequestEntry) cause {
	return func(ctx context.Context) error {
		url := makeQueue(ctx, nil)
		if batch == nil {
			batch = []types.SendMessageBatchRequestEntry{}
		}
		_, err := server(ctx).SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: batch})
		return err
	}
}

func named(id string) types.SendMessageBatchRequestEntry {
	return types.SendMessageBatchRequestEntry{Id: &id, MessageBody: aws.String("m")}
}

func createTwice(first, second attributes) cause {
	return func(ctx context.Context) error {
		name := unique()
		must(server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: first}))
		_, err := server(ctx).CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: second})
		return err
	}
}

func errorScenarios() map[string]scenario {
	long := strings.Repeat("x", 600*1024)
	return map[string]scenario{
		"catches QueueDoesNotExist": catches[*types.QueueDoesNotExist](func(ctx context.Context) error {
			_, err := server(ctx).GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(unique())})
			return err
		}),

		"catches QueueNameExists": catches[*types.QueueNameExists](
			createTwice(attributes{"DelaySeconds": "1"}, attributes{"DelaySeconds": "2"}),
		),

		"catches QueueDeletedRecently": catches[*types.QueueDeletedRecently](func(ctx context.Context) error {
			input := &sqs.CreateQueueInput{QueueName: aws.String(unique())}
			created := must(server(ctx).CreateQueue(ctx, input))
			must(server(ctx).DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: created.QueueUrl}))
			_, err := server(ctx).CreateQueue(ctx, input)
			return err
		}),

		"catches ReceiptHandleIsInvalid": catches[*types.ReceiptHandleIsInvalid](func(ctx context.Context) error {
			_, err := server(ctx).DeleteMessage(ctx, &sqs.DeleteMessageInput{
				QueueUrl: aws.String(makeQueue(ctx, nil)), ReceiptHandle: aws.String("garbage"),
			})
			return err
		}),

		"catches PurgeQueueInProgress": catches[*types.PurgeQueueInProgress](func(ctx context.Context) error {
			input := &sqs.PurgeQueueInput{QueueUrl: aws.String(makeQueue(ctx, nil))}
			must(server(ctx).PurgeQueue(ctx, input))
			_, err := server(ctx).PurgeQueue(ctx, input)
			return err
		}),

		"catches BatchEntryIdsNotDistinct": catches[*types.BatchEntryIdsNotDistinct](
			sendBatch(named("a"), named("a")),
		),

		"catches EmptyBatchRequest": catches[*types.EmptyBatchRequest](sendBatch()),

		"catches TooManyEntriesInBatchRequest": catches[*types.TooManyEntriesInBatchRequest](
			sendBatch(entries(strings.Split("0123456789a", "")...)...),
		),

		"catches InvalidBatchEntryId": catches[*types.InvalidBatchEntryId](sendBatch(named("a:b"))),

		"catches BatchRequestTooLong": catches[*types.BatchRequestTooLong](sendBatch(entries(long, long)...)),

		"catches InvalidMessageContents": catches[*types.InvalidMessageContents](func(ctx context.Context) error {
			_, err := server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: aws.String(makeQueue(ctx, nil)), MessageBody: aws.String("\u0001"),
			})
			return err
		}),

		"catches InvalidAttributeName": catches[*types.InvalidAttributeName](func(ctx context.Context) error {
			_, err := server(ctx).GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
				QueueUrl:       aws.String(makeQueue(ctx, nil)),
				AttributeNames: []types.QueueAttributeName{"Foobar"},
			})
			return err
		}),

		"catches InvalidAttributeValue": catches[*types.InvalidAttributeValue](func(ctx context.Context) error {
			_, err := server(ctx).SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
				QueueUrl: aws.String(makeQueue(ctx, nil)), Attributes: attributes{"DelaySeconds": "901"},
			})
			return err
		}),

		"catches ResourceNotFoundException": catches[*types.ResourceNotFoundException](
			func(ctx context.Context) error {
				missing := arnOf(ctx, makeQueue(ctx, nil)) + "-missing"
				_, err := server(ctx).StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &missing})
				return err
			},
		),

		"sees InvalidParameterValue and MissingParameter, which have no class": func(ctx context.Context) {
			url, fifo := makeQueue(ctx, nil), makeFIFOQueue(ctx, true)

			_, wrong := server(ctx).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
				QueueUrl: &url, MaxNumberOfMessages: 11,
			})
			_, missing := server(ctx).SendMessage(ctx, &sqs.SendMessageInput{
				QueueUrl: &fifo, MessageBody: aws.String("m"),
			})

			refusedAs(wrong, 400, "InvalidParameterValue")
			refusedAs(missing, 400, "MissingParameter")
		},

		"is refused with a wrong secret": func(ctx context.Context) {
			err := listWith(ctx, os.Getenv("AWS_ACCESS_KEY_ID"), "wrong")

			refusedAs(err, 403, "SignatureDoesNotMatch", "InvalidSignatureException")
		},

		"is refused with an unknown key": func(ctx context.Context) {
			err := listWith(ctx, "AKIAUNKNOWNUNKNOWN00", os.Getenv("AWS_SECRET_ACCESS_KEY"))

			refusedAs(err, 403, "InvalidClientTokenId", "UnrecognizedClientException")
		},
	}
}

func listWith(ctx context.Context, key, secret string) error {
	given := config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(key, secret, ""))
	_, err := client(ctx, os.Getenv("SQS_ENDPOINT"), given).ListQueues(ctx, &sqs.ListQueuesInput{})
	return err
}

func refusedAs(err error, status int, codes ...string) {
	var caught smithy.APIError
	check(errors.As(err, &caught), "not refused by the server: %v", err)
	check(slices.Contains(codes, caught.ErrorCode()), "%s", fmt.Sprint(err))
	var response *awshttp.ResponseError
	check(errors.As(err, &response), "without a response: %v", err)
	equal(response.HTTPStatusCode(), status)
}
