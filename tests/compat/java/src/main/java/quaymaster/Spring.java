package quaymaster;

import static quaymaster.Report.check;
import static quaymaster.Report.equal;
import static quaymaster.Report.eventually;
import static quaymaster.Report.thrown;

import io.awspring.cloud.sqs.listener.QueueNotFoundStrategy;
import io.awspring.cloud.sqs.listener.SqsHeaders;
import io.awspring.cloud.sqs.operations.MessagingOperationFailedException;
import io.awspring.cloud.sqs.operations.SendBatchOperationFailedException;
import io.awspring.cloud.sqs.operations.SendResult;
import io.awspring.cloud.sqs.operations.SqsTemplate;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import quaymaster.SpringApp.InGroup;
import quaymaster.SpringApp.Listeners;
import quaymaster.SpringApp.Order;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;

/** All scenarios of Spring Cloud AWS: its listeners and its template, in an application as Spring starts it. */
public final class Spring {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final String prefix = "spring-" + UUID.randomUUID().toString().substring(0, 8);
    private final SqsClient sqs = SqsClient.create();
    private final ConfigurableApplicationContext context;
    private final Listeners listeners;
    private final SqsTemplate template;

    public static void main(String[] arguments) {
        Spring spring = new Spring();
        spring.run();
        System.exit(0); // Clients and threads that a failed scenario left must not keep the program.
    }

    private Spring() {
        String dead = sqs.createQueue(r -> r.queueName(prefix + "-dead")).queueUrl();
        String policy = "{\"deadLetterTargetArn\": \"" + arn(dead) + "\", \"maxReceiveCount\": 2}";
        sqs.createQueue(r -> r.queueName(prefix + "-failing").attributes(Map.of(
                QueueAttributeName.REDRIVE_POLICY, policy, QueueAttributeName.VISIBILITY_TIMEOUT, "1")));
        context = new SpringApplicationBuilder(SpringApp.class).properties("compat.prefix=" + prefix).run();
        listeners = context.getBean(Listeners.class);
        template = context.getBean(SqsTemplate.class);
    }

    private void run() {
        Report.run("creates the queues its listeners name", this::createdQueues);
        Report.run("hands a message to its listener and deletes it", this::listener);
        Report.run("hands a batch to its listener and deletes it", this::batchListener);
        Report.run("handles FIFO groups in their order", this::fifoListener);
        Report.run("receives again what its listener failed on, then leaves it to the dead letters", this::failing);
        Report.run("receives again what was not acknowledged by hand", this::acknowledgedByHand);
        Report.run("receives at once what its listener made visible", this::madeVisible);
        Report.run("sends headers as attributes and receives them with its template", this::headers);
        Report.run("sends and receives many with its template", this::many);
        Report.run("says which messages of a batch were not sent", this::batchWithFailure);
        Report.run("sends to a FIFO queue with its template", this::fifoTemplate);
        Report.run("finds a queue by its name, URL and ARN", this::queueNames);
        Report.run("fails on a queue that does not exist when told to", this::queueNotFound);
        Report.run("ends the message in hand when it is stopped and leaves the others", this::stop);
    }

    // -- listeners

    private void createdQueues() {
        Set<String> names = new HashSet<>();
        sqs.listQueues(r -> r.queueNamePrefix(prefix)).queueUrls()
                .forEach(url -> names.add(url.substring(url.lastIndexOf(prefix) + prefix.length())));

        equal(Set.of("-dead", "-failing", "-orders", "-batches", "-groups.fifo", "-by-hand", "-returned", "-slow"),
                names);
        equal("true", attribute(url("-groups.fifo"), QueueAttributeName.FIFO_QUEUE));
    }

    private void listener() throws Exception {
        SendResult<Order> sent = template.send(
                to -> to.queue(prefix + "-orders").payload(new Order("coffee ☕", 2)).header("table", "seven"));
        Message<Order> received = next(listeners.orders);

        equal(new Order("coffee ☕", 2), received.getPayload());
        equal(sent.messageId(), received.getHeaders().getId());
        equal("seven", received.getHeaders().get("table"));
        isEmptied("-orders");
    }

    private void batchListener() throws Exception {
        List<Order> orders = IntStream.range(0, 25).mapToObj(number -> new Order("coffee", number)).toList();
        for (int from = 0; from < 25; from += 10) {
            template.sendMany(prefix + "-batches", messages(orders.subList(from, Math.min(25, from + 10))));
        }
        List<Order> received = new ArrayList<>();
        while (received.size() < 25) {
            received.addAll(next(listeners.batches));
        }

        equal(25, received.size());
        equal(new HashSet<>(orders), new HashSet<>(received));
        isEmptied("-batches");
    }

    private void fifoListener() throws Exception {
        for (int number = 0; number < 5; number++) {
            for (String group : List.of("a", "b", "c")) {
                String body = group + number;
                template.send(to -> to.queue(prefix + "-groups.fifo").payload(body).messageGroupId(group));
            }
        }
        List<InGroup> received = new ArrayList<>();
        while (received.size() < 15) {
            received.add(next(listeners.inGroups));
        }

        for (String group : List.of("a", "b", "c")) {
            equal(IntStream.range(0, 5).mapToObj(number -> group + number).toList(),
                    received.stream().filter(one -> one.group().equals(group)).map(InGroup::body).toList());
        }
        isEmptied("-groups.fifo");
    }

    private void failing() throws Exception {
        template.send(prefix + "-failing", "poison");

        Message<String> dead = template.receive(
                from -> from.queue(prefix + "-dead").pollTimeout(PATIENCE), String.class).orElseThrow();

        equal("poison", dead.getPayload());
        equal(2, listeners.failures.get());
        isEmptied("-failing");
    }

    private void acknowledgedByHand() throws Exception {
        template.send(prefix + "-by-hand", "twice");

        equal("twice 1", next(listeners.byHand));
        equal("twice 2", next(listeners.byHand));
        isEmptied("-by-hand");
    }

    private void madeVisible() throws Exception {
        template.send(prefix + "-returned", "again");

        equal("again 1", next(listeners.returned));
        equal("again 2", next(listeners.returned));
        isEmptied("-returned");
    }

    private void stop() throws Exception {
        String url = url("-slow");
        List<String> bodies = IntStream.range(0, 100).mapToObj(Integer::toString).toList();
        for (int from = 0; from < 100; from += 10) {
            template.sendMany(prefix + "-slow", messages(bodies.subList(from, from + 10)));
        }
        eventually(() -> !listeners.slowDone.isEmpty(), () -> listeners.slow);

        context.close();

        equal(List.copyOf(listeners.slow), List.copyOf(listeners.slowDone));
        equal(100 - listeners.slowDone.size(), messagesIn(url));
        check(messagesIn(url) > 0, "all were handled before the stop");
    }

    // -- the template

    private void headers() {
        String name = prefix + "-headers";
        UUID key = UUID.randomUUID();

        SendResult<Order> sent = template.send(to -> to.queue(name).payload(new Order("tea", 1))
                .headers(Map.of("team", "coffee", "table", 7, "key", key)));
        Message<Order> received =
                template.receive(from -> from.queue(name).pollTimeout(PATIENCE), Order.class).orElseThrow();

        equal(new Order("tea", 1), received.getPayload());
        equal(sent.messageId(), received.getHeaders().getId());
        equal("coffee", received.getHeaders().get("team"));
        equal(7, received.getHeaders().get("table"));
        equal(key.toString(), String.valueOf(received.getHeaders().get("key")));
        equal(0, messagesIn(url("-headers")));
    }

    private void many() {
        String name = prefix + "-many";
        List<Order> orders = IntStream.range(0, 10).mapToObj(number -> new Order("coffee", number)).toList();

        SendResult.Batch<Order> sent = template.sendMany(name, messages(orders));
        Set<Order> received = new HashSet<>();
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (received.size() < 10) {
            check(System.nanoTime() < end, received);
            template.receiveMany(from -> from.queue(name).maxNumberOfMessages(10)
                            .pollTimeout(Duration.ofSeconds(2)), Order.class)
                    .forEach(message -> received.add(message.getPayload()));
        }

        equal(10, sent.successful().size());
        equal(new HashSet<>(orders), received);
        equal(0, messagesIn(url("-many")));
    }

    private void batchWithFailure() {
        String name = prefix + "-partly";

        SendBatchOperationFailedException error = thrown(SendBatchOperationFailedException.class,
                () -> template.sendMany(name, messages(List.of("good", "\u0001", "also good"))));

        SendResult.Batch<?> result = error.getSendBatchResult(String.class);
        equal(2, result.successful().size());
        equal(1, result.failed().size());
        equal(2, messagesIn(url("-partly")));
    }

    private void fifoTemplate() {
        String name = prefix + "-template.fifo";

        SendResult<String> first = template.send(
                to -> to.queue(name).payload("one").messageGroupId("g").messageDeduplicationId("same"));
        SendResult<String> second = template.send(
                to -> to.queue(name).payload("two").messageGroupId("g").messageDeduplicationId("same"));
        Message<String> received =
                template.receive(from -> from.queue(name).pollTimeout(PATIENCE), String.class).orElseThrow();

        equal(first.messageId(), second.messageId());
        equal(first.additionalInformation(), second.additionalInformation());
        equal("one", received.getPayload());
        equal("g", received.getHeaders().get(SqsHeaders.MessageSystemAttributes.SQS_MESSAGE_GROUP_ID_HEADER));
        equal(0, messagesIn(url("-template.fifo")));
    }

    private void queueNames() {
        String url = sqs.createQueue(r -> r.queueName(prefix + "-named")).queueUrl();

        for (String name : List.of(prefix + "-named", url, arn(url))) {
            template.send(name, "by " + name);
            equal("by " + name, template.receive(
                    from -> from.queue(name).pollTimeout(PATIENCE), String.class).orElseThrow().getPayload());
        }
    }

    private void queueNotFound() {
        SqsTemplate strict = SqsTemplate.builder()
                .sqsAsyncClient(context.getBean(SqsAsyncClient.class))
                .configure(options -> options.queueNotFoundStrategy(QueueNotFoundStrategy.FAIL))
                .build();

        Throwable error = thrown(MessagingOperationFailedException.class, () -> strict.send(prefix + "-none", "m"));

        while (error.getCause() != null) {
            error = error.getCause();
        }
        check(error instanceof QueueDoesNotExistException, error);
    }

    // -- small words

    private static <T> T next(BlockingQueue<T> received) throws InterruptedException {
        T one = received.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(one != null, "nothing came");
        return one;
    }

    private static <T> List<Message<T>> messages(List<T> payloads) {
        return payloads.stream().map(payload -> MessageBuilder.withPayload(payload).build()).toList();
    }

    private String url(String suffix) {
        return sqs.getQueueUrl(r -> r.queueName(prefix + suffix)).queueUrl();
    }

    private String arn(String url) {
        return attribute(url, QueueAttributeName.QUEUE_ARN);
    }

    private String attribute(String url, QueueAttributeName name) {
        return sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNames(name)).attributes().get(name);
    }

    private int messagesIn(String url) {
        return Integer.parseInt(attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES))
                + Integer.parseInt(attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));
    }

    private void isEmptied(String suffix) throws Exception {
        String url = url(suffix);
        eventually(() -> messagesIn(url) == 0, () -> messagesIn(url));
    }
}
