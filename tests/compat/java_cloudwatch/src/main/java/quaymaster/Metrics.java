package quaymaster;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;
import software.amazon.awssdk.services.cloudwatch.CloudWatchClient;
import software.amazon.awssdk.services.cloudwatch.model.CloudWatchException;
import software.amazon.awssdk.services.cloudwatch.model.Datapoint;
import software.amazon.awssdk.services.cloudwatch.model.Dimension;
import software.amazon.awssdk.services.cloudwatch.model.DimensionFilter;
import software.amazon.awssdk.services.cloudwatch.model.Metric;
import software.amazon.awssdk.services.cloudwatch.model.Statistic;

/** Asks CloudWatch as the AWS SDK for Java (version 2) does, in CBOR. */
final class Metrics {
    private static final Duration PATIENCE = Duration.ofSeconds(130);

    private Metrics() {}

    public static void main(String[] arguments) {
        Report.run("speaks CBOR", Metrics::speaksCbor);
        Report.run("lists the metrics of a queue", Metrics::listsMetrics);
        Report.run("reads statistics with their times", Metrics::readsStatistics);
        Report.run("learns that a dashboard does not exist", Metrics::missesDashboard);
        Report.run("is refused with a wrong secret", Metrics::isRefused);
        System.exit(0);
    }

    private static void speaksCbor() {
        AtomicReference<Optional<String>> seen = new AtomicReference<>(Optional.empty());
        ExecutionInterceptor look = new ExecutionInterceptor() {
            @Override
            public void beforeTransmission(Context.BeforeTransmission context, ExecutionAttributes attributes) {
                seen.set(context.httpRequest().firstMatchingHeader("smithy-protocol"));
            }
        };
        try (CloudWatchClient client = CloudWatchClient.builder()
                .overrideConfiguration(options -> options.addExecutionInterceptor(look))
                .build()) {
            client.listMetrics();
        }
        Report.equal(Optional.of("rpc-v2-cbor"), seen.get());
    }

    private static void listsMetrics() {
        try (CloudWatchClient client = CloudWatchClient.create()) {
            DimensionFilter orders = DimensionFilter.builder().name("QueueName").value("orders").build();
            List<String> names = client
                    .listMetricsPaginator(request -> request.namespace("AWS/SQS").dimensions(orders))
                    .metrics()
                    .stream()
                    .map(Metric::metricName)
                    .collect(Collectors.toList());
            Report.check(names.contains("NumberOfMessagesSent"), names);
        }
    }

    private static void readsStatistics() throws Exception {
        Instant end = Instant.now().plus(PATIENCE);
        try (CloudWatchClient client = CloudWatchClient.create()) {
            Optional<Datapoint> point = sent(client);
            while (point.isEmpty()) {
                Report.check(Instant.now().isBefore(end), "no message was counted");
                Thread.sleep(1000);
                point = sent(client);
            }
            Report.equal(0L, point.get().timestamp().getEpochSecond() % 60);
        }
    }

    private static Optional<Datapoint> sent(CloudWatchClient client) {
        Instant now = Instant.now();
        Dimension orders = Dimension.builder().name("QueueName").value("orders").build();
        return client
                .getMetricStatistics(request -> request
                        .namespace("AWS/SQS")
                        .metricName("NumberOfMessagesSent")
                        .dimensions(orders)
                        .startTime(now.minus(Duration.ofMinutes(30)))
                        .endTime(now.plus(Duration.ofMinutes(1)))
                        .period(60)
                        .statistics(Statistic.SUM))
                .datapoints()
                .stream()
                .filter(point -> point.sum() > 0)
                .findFirst();
    }

    private static void missesDashboard() {
        try (CloudWatchClient client = CloudWatchClient.create()) {
            client.getDashboard(request -> request.dashboardName("java-nothing"));
            throw new AssertionError("nothing was thrown");
        } catch (CloudWatchException error) {
            Report.equal(404, error.statusCode());
            Report.equal("ResourceNotFound", error.awsErrorDetails().errorCode());
        }
    }

    private static void isRefused() {
        AwsBasicCredentials wrong = AwsBasicCredentials.create(System.getenv("AWS_ACCESS_KEY_ID"), "wrong");
        try (CloudWatchClient client = CloudWatchClient.builder()
                .credentialsProvider(StaticCredentialsProvider.create(wrong))
                .build()) {
            client.listMetrics();
            throw new AssertionError("nothing was thrown");
        } catch (CloudWatchException error) {
            Report.equal(403, error.statusCode());
            Report.equal("SignatureDoesNotMatch", error.awsErrorDetails().errorCode());
        }
    }
}
