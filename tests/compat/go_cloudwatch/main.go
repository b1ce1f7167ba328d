// Asks CloudWatch as the AWS SDK for Go does, in CBOR, and as KEDA's aws-cloudwatch scaler does through it. Prints what
// came of each scenario, as tests/compat/foreign.py reads it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	limit   = 150 * time.Second
	pause   = time.Second
	queue   = "orders"
	service = "AWS/SQS"
)

// A scenario panics (see must and check) when something is not as it should be.
type scenario func(ctx context.Context)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(is bool, what string, values ...any) {
	if !is {
		panic(fmt.Sprintf(what, values...))
	}
}

func client(ctx context.Context, options ...func(*cloudwatch.Options)) *cloudwatch.Client {
	return cloudwatch.NewFromConfig(must(config.LoadDefaultConfig(ctx)), options...)
}

// eventually asks again until there is an answer; the context ends it.
func eventually[T any](ctx context.Context, ask func() (T, bool)) T {
	for {
		value, is := ask()
		if is {
			return value
		}
		select {
		case <-ctx.Done():
			panic(ctx.Err())
		case <-time.After(pause):
		}
	}
}

func dimensions() []types.Dimension {
	return []types.Dimension{{Name: aws.String("QueueName"), Value: aws.String(queue)}}
}

func lastHalfHour() (*time.Time, *time.Time) {
	now := time.Now()
	return aws.Time(now.Add(-30 * time.Minute)), aws.Time(now.Add(time.Minute))
}

func code(err error) string {
	var failure smithy.APIError
	check(errors.As(err, &failure), "no error of the API: %v", err)
	return failure.ErrorCode()
}

var scenarios = map[string]scenario{
	"speaks CBOR": func(ctx context.Context) {
		seen := ""
		look := middleware.FinalizeMiddlewareFunc("look", func(
			ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
		) (middleware.FinalizeOutput, middleware.Metadata, error) {
			seen = in.Request.(*smithyhttp.Request).Header.Get("smithy-protocol")
			return next.HandleFinalize(ctx, in)
		})
		asking := client(ctx, func(o *cloudwatch.Options) {
			o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
				return stack.Finalize.Add(look, middleware.After)
			})
		})
		must(asking.ListMetrics(ctx, &cloudwatch.ListMetricsInput{}))
		check(seen == "rpc-v2-cbor", "it speaks %q", seen)
	},
	"lists the metrics of a queue": func(ctx context.Context) {
		pages := cloudwatch.NewListMetricsPaginator(client(ctx), &cloudwatch.ListMetricsInput{
			Namespace:  aws.String(service),
			Dimensions: []types.DimensionFilter{{Name: aws.String("QueueName"), Value: aws.String(queue)}},
		})
		names := map[string]bool{}
		for pages.HasMorePages() {
			for _, metric := range must(pages.NextPage(ctx)).Metrics {
				names[*metric.MetricName] = true
			}
		}
		check(names["NumberOfMessagesSent"] && names["ApproximateAgeOfOldestMessage"], "only %v", names)
	},
	"reads statistics with their times": func(ctx context.Context) {
		point := eventually(ctx, func() (types.Datapoint, bool) {
			from, to := lastHalfHour()
			answer := must(client(ctx).GetMetricStatistics(ctx, &cloudwatch.GetMetricStatisticsInput{
				Namespace: aws.String(service), MetricName: aws.String("NumberOfMessagesSent"),
				Dimensions: dimensions(), StartTime: from, EndTime: to, Period: aws.Int32(60),
				Statistics: []types.Statistic{types.StatisticSum},
			}))
			for _, point := range answer.Datapoints {
				if point.Sum != nil && *point.Sum > 0 {
					return point, true
				}
			}
			return types.Datapoint{}, false
		})
		check(point.Timestamp.Second() == 0, "a minute begins at %v", point.Timestamp)
		check(time.Since(*point.Timestamp) < time.Hour, "it is of %v", point.Timestamp)
	},
	"scales by KEDA's query": func(ctx context.Context) {
		text := `SELECT MAX("ApproximateNumberOfMessagesVisible") FROM "AWS/SQS" WHERE QueueName = 'orders'`
		value := eventually(ctx, func() (float64, bool) {
			from, to := lastHalfHour()
			answer := must(client(ctx).GetMetricData(ctx, &cloudwatch.GetMetricDataInput{
				StartTime: from, EndTime: to, ScanBy: types.ScanByTimestampDescending,
				MetricDataQueries: []types.MetricDataQuery{{
					Id: aws.String("q1"), Expression: aws.String(text), Period: aws.Int32(60),
				}},
			}))
			values := answer.MetricDataResults[0].Values
			return append(values, 0)[0], len(values) > 0 && values[0] > 0
		})
		check(value == 5, "there are %v", value)
	},
	"scales by KEDA's dimensions": func(ctx context.Context) {
		value := eventually(ctx, func() (float64, bool) {
			from, to := lastHalfHour()
			answer := must(client(ctx).GetMetricData(ctx, &cloudwatch.GetMetricDataInput{
				StartTime: from, EndTime: to, ScanBy: types.ScanByTimestampDescending,
				MetricDataQueries: []types.MetricDataQuery{{
					Id: aws.String("c1"), ReturnData: aws.Bool(true),
					MetricStat: &types.MetricStat{
						Metric: &types.Metric{
							Namespace: aws.String(service), Dimensions: dimensions(),
							MetricName: aws.String("ApproximateNumberOfMessagesVisible"),
						},
						Period: aws.Int32(60), Stat: aws.String("Average"), Unit: types.StandardUnitCount,
					},
				}},
			}))
			values := answer.MetricDataResults[0].Values
			return append(values, 0)[0], len(values) > 0 && values[0] > 0
		})
		check(value == 5, "there are %v", value)
	},
	"catches an error of the service by its class": func(ctx context.Context) {
		_, err := client(ctx).GetDashboard(ctx, &cloudwatch.GetDashboardInput{
			DashboardName: aws.String("go-nothing"),
		})
		var missing *types.DashboardNotFoundError
		check(errors.As(err, &missing), "it is %v", err)
		check(missing.ErrorMessage() != "", "it says nothing")
	},
	"keeps a dashboard": func(ctx context.Context) {
		name := fmt.Sprintf("go-%d", time.Now().UnixNano())
		body := `{"widgets":[{"type":"metric","properties":{"metrics":[["AWS/SQS","NumberOfMessagesSent","QueueName","orders"]],"region":"us-east-1"}}]}`
		asking := client(ctx)
		must(asking.PutDashboard(ctx, &cloudwatch.PutDashboardInput{
			DashboardName: &name, DashboardBody: &body,
		}))
		kept := must(asking.GetDashboard(ctx, &cloudwatch.GetDashboardInput{DashboardName: &name}))
		check(*kept.DashboardBody == body, "it is %v", *kept.DashboardBody)
		must(asking.DeleteDashboards(ctx, &cloudwatch.DeleteDashboardsInput{DashboardNames: []string{name}}))
	},
	"is refused with a wrong secret": func(ctx context.Context) {
		_, err := client(ctx, func(o *cloudwatch.Options) {
			o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: "wrong"}, nil
			})
		}).ListMetrics(ctx, &cloudwatch.ListMetricsInput{})
		check(code(err) == "SignatureDoesNotMatch", "it is %v", err)
	},
}

func run(action scenario) (failure *string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if thrown := recover(); thrown != nil {
			text := fmt.Sprintf("%v\n%s", thrown, debug.Stack())
			failure = &text
		}
	}()
	action(ctx)
	return nil
}

func main() {
	for name, action := range scenarios {
		outcome := must(json.Marshal(struct {
			Scenario string  `json:"scenario"`
			Error    *string `json:"error"`
		}{name, run(action)}))
		fmt.Fprintln(os.Stdout, string(outcome))
	}
}
