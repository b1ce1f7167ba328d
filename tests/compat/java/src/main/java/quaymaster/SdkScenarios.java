package quaymaster;

import static quaymaster.Report.check;
import static quaymaster.Report.equal;
import static quaymaster.Report.eventually;
import static quaymaster.Report.thrown;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_DELAYED;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.QUEUE_ARN;

import java.math.BigInteger;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.core.exception.ApiCallTimeoutException;
import software.amazon.awssdk.core.exception.SdkClientException;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.BatchEntryIdsNotDistinctException;
import software.amazon.awssdk.services.sqs.model.BatchRequestTooLongException;
import software.amazon.awssdk.services.sqs.model.BatchResultErrorEntry;
import software.amazon.awssdk.services.sqs.model.ChangeMessageVisibilityBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.EmptyBatchRequestException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeNameException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeValueException;
import software.amazon.awssdk.services.sqs.model.InvalidBatchEntryIdException;
import software.amazon.awssdk.services.sqs.model.InvalidMessageContentsException;
import software.amazon.awssdk.services.sqs.model.ListMessageMoveTasksResultEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeNameForSends;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeValue;
import software.amazon.awssdk.services.sqs.model.PurgeQueueInProgressException;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDeletedRecentlyException;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.QueueNameExistsException;
import software.amazon.awssdk.services.sqs.model.ReceiptHandleIsInvalidException;
import software.amazon.awssdk.services.sqs.model.ReceiveMessageRequest;
import software.amazon.awssdk.services.sqs.model.ResourceNotFoundException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchResultEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.SqsException;
import software.amazon.awssdk.services.sqs.model.TooManyEntriesInBatchRequestException;

/** What every AWS SDK is asked to do, done by one of the clients of the SDK for Java 2. */
final class SdkScenarios {
    private final Clients clients;
    private final String prefix;
    private final SqsClient sqs;
    private int queueCount;

    SdkScenarios(Clients clients) {
        this.clients = clients;
        this.prefix = "java-" + clients.name().toLowerCase() + "-" + UUID.randomUUID().toString().substring(0, 8);
        this.sqs = clients.fromEnvironment();
    }

    void run() {
        run("sends, receives and deletes a message", this::sendReceiveDelete);
        run("carries every character SQS allows", this::everyCharacter);
        run("carries a message of 1 MiB", this::oneMebibyte);
        run("carries string, number and binary attributes", this::attributes);
        run("refuses an answer with a wrong checksum", this::wrongChecksum);
        run("sends a batch of which one entry fails", this::sendBatchWithFailure);
        run("hides and deletes in batches of which one entry fails", this::handleBatchesWithFailure);
        run("keeps the order of a FIFO group", this::fifoOrder);
        run("stores a FIFO duplicate once", this::fifoDuplicate);
        run("is woken from a long poll by a send", this::longPollWoken);
        run("gets nothing from an empty queue", this::emptyQueue);
        run("leaves no message to a poll it gave up", this::pollGivenUp);
        run("changes the visibility of a message", this::changeVisibility);
        run("creates, finds, lists and deletes queues", this::queues);
        run("reads and sets queue attributes", this::queueAttributes);
        run("tags a queue", this::tags);
        run("purges a queue", this::purge);
        run("adds and removes a permission", this::permission);
        run("moves dead letters back", this::moveBack);
        run("cancels a move task", this::cancelMove);
        run("stores a retried send once", this::retriedSend);
        run("stores a retried batch once", this::retriedBatch);
        run("takes its endpoint from the environment", this::endpointFromEnvironment);
        run("sends and receives many at a time", this::manyAtATime);
        run("is refused with a wrong secret", this::wrongSecret);
        run("is refused with an unknown key", this::unknownKey);
        run("sees InvalidParameterValue and MissingParameter, which have no class", this::errorsWithoutClass);
        errors();
        sqs.close();
    }

    private void run(String name, Report.Scenario scenario) {
        Report.run(clients.name().toLowerCase() + ": " + name, scenario);
    }

    // -- messages

    private void sendReceiveDelete() {
        String url = queue();

        SendMessageResponse sent = sqs.sendMessage(r -> r.queueUrl(url).messageBody("two coffees"));
        Message message = receiveOne(url);
        sqs.deleteMessage(r -> r.queueUrl(url).receiptHandle(message.receiptHandle()));

        equal("two coffees", message.body());
        equal(sent.messageId(), message.messageId());
        equal(sent.md5OfMessageBody(), message.md5OfBody());
        equal("1", message.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT));
        check(message.attributes().containsKey(MessageSystemAttributeName.SENDER_ID), message.attributes());
        equal(List.of(0, 0, 0), counts(url));
    }

    private void everyCharacter() {
        String url = queue();
        String body = "\t\n\r &<>\"'/\\ \u007f\u0085 äß \ud7ff\ue000\ufffd "
                + Character.toString(0x10000) + Character.toString(0x1f600) + Character.toString(0x10ffff);

        send(url, body);

        equal(body, receiveOne(url).body());
    }

    private void oneMebibyte() {
        String url = queue();
        String body = "ä".repeat(512 * 1024);

        send(url, body);

        equal(body, receiveOne(url).body());
    }

    private void attributes() {
        String url = queue();
        byte[] bytes = new byte[256];
        IntStream.range(0, 256).forEach(i -> bytes[i] = (byte) i);
        Map<String, MessageAttributeValue> attributes = Map.of(
                "text", attribute("String", "ä ☕"),
                "kind", attribute("String.kind", "custom"),
                "number", attribute("Number", "-12.5e3"),
                "bytes", MessageAttributeValue.builder()
                        .dataType("Binary").binaryValue(SdkBytes.fromByteArray(bytes)).build());
        String trace = "Root=1-67891233-abcdef012345678912345678";

        SendMessageResponse sent = sqs.sendMessage(r -> r.queueUrl(url).messageBody("m")
                .messageAttributes(attributes)
                .messageSystemAttributes(Map.of(MessageSystemAttributeNameForSends.AWS_TRACE_HEADER,
                        MessageSystemAttributeValue.builder().dataType("String").stringValue(trace).build())));
        Message message = receiveOne(url);
        sqs.changeMessageVisibility(
                r -> r.queueUrl(url).receiptHandle(message.receiptHandle()).visibilityTimeout(0));
        Message some = sqs.receiveMessage(r -> r.queueUrl(url).messageAttributeNames("kin.*", "number"))
                .messages().get(0);

        equal(attributes, message.messageAttributes());
        equal(sent.md5OfMessageAttributes(), message.md5OfMessageAttributes());
        check(sent.md5OfMessageSystemAttributes() != null, sent);
        equal(trace, message.attributes().get(MessageSystemAttributeName.AWS_TRACE_HEADER));
        equal(Set.of("kind", "number"), some.messageAttributes().keySet());
    }

    private void wrongChecksum() {
        String url = queue();
        SqsClient spoiled = clients.at(System.getenv("SQS_SPOILED_ENDPOINT"));

        SdkClientException onSend = thrown(
                SdkClientException.class, () -> spoiled.sendMessage(r -> r.queueUrl(url).messageBody("m")));
        SdkClientException onReceive = thrown(
                SdkClientException.class, () -> spoiled.receiveMessage(r -> r.queueUrl(url).waitTimeSeconds(5)));

        check(onSend.getMessage().contains("MD5"), onSend);
        check(onReceive.getMessage().contains("MD5"), onReceive);
    }

    private void sendBatchWithFailure() {
        String url = queue();

        var answer = sqs.sendMessageBatch(r -> r.queueUrl(url).entries(
                entry("good", "one"), entry("bad", "\u0001"), entry("also_good", "two")));

        equal(Set.of("good", "also_good"),
                answer.successful().stream().map(SendMessageBatchResultEntry::id).collect(Collectors.toSet()));
        BatchResultErrorEntry failed = answer.failed().get(0);
        equal(1, answer.failed().size());
        equal("bad", failed.id());
        check(failed.senderFault(), failed);
        equal("InvalidMessageContents", failed.code());
        equal(Set.of("one", "two"), bodies(receive(url, 2)));
    }

    private void handleBatchesWithFailure() {
        String url = queue();
        send(url, "one", "two");
        List<Message> messages = receive(url, 2);
        Message one = messages.get(0);
        Message two = messages.get(1);

        var hidden = sqs.changeMessageVisibilityBatch(r -> r.queueUrl(url).entries(
                ChangeMessageVisibilityBatchRequestEntry.builder()
                        .id("a").receiptHandle(one.receiptHandle()).visibilityTimeout(0).build(),
                ChangeMessageVisibilityBatchRequestEntry.builder()
                        .id("b").receiptHandle("garbage").visibilityTimeout(0).build()));
        Message again = receiveOne(url);
        var deleted = sqs.deleteMessageBatch(r -> r.queueUrl(url).entries(
                DeleteMessageBatchRequestEntry.builder().id("a").receiptHandle(again.receiptHandle()).build(),
                DeleteMessageBatchRequestEntry.builder().id("b").receiptHandle("garbage").build(),
                DeleteMessageBatchRequestEntry.builder().id("c").receiptHandle(two.receiptHandle()).build()));

        equal(one.messageId(), again.messageId());
        equal(List.of("a"), hidden.successful().stream().map(e -> e.id()).toList());
        equal(List.of("b:ReceiptHandleIsInvalid"), failures(hidden.failed()));
        equal(List.of("a", "c"), deleted.successful().stream().map(e -> e.id()).sorted().toList());
        equal(List.of("b:ReceiptHandleIsInvalid"), failures(deleted.failed()));
        equal(List.of(0, 0, 0), counts(url));
    }

    // -- FIFO

    private void fifoOrder() {
        String url = fifoQueue();
        List<String> numbers = new ArrayList<>();
        for (String body : List.of("a1", "a2", "b1", "a3", "b2")) {
            numbers.add(sqs.sendMessage(r -> r.queueUrl(url).messageBody(body)
                    .messageGroupId(body.substring(0, 1)).messageDeduplicationId(body)).sequenceNumber());
        }

        Message first = receiveOne(url);
        List<Message> others = sqs.receiveMessage(r -> everything(r, url)).messages();
        sqs.deleteMessage(r -> r.queueUrl(url).receiptHandle(first.receiptHandle()));
        others.forEach(m -> sqs.deleteMessage(r -> r.queueUrl(url).receiptHandle(m.receiptHandle())));
        List<Message> last = sqs.receiveMessage(r -> everything(r, url)).messages();

        equal("a1", first.body());
        equal("a", first.attributes().get(MessageSystemAttributeName.MESSAGE_GROUP_ID));
        equal("a1", first.attributes().get(MessageSystemAttributeName.MESSAGE_DEDUPLICATION_ID));
        equal(numbers.get(0), first.attributes().get(MessageSystemAttributeName.SEQUENCE_NUMBER));
        equal(List.of("b1", "b2"), others.stream().map(Message::body).toList());
        equal(List.of("a2", "a3"), last.stream().map(Message::body).toList());
        equal(numbers, numbers.stream().sorted(Comparator.comparing(BigInteger::new)).toList());
        equal(5, new HashSet<>(numbers).size());
    }

    private void fifoDuplicate() {
        String url = fifoQueue();

        SendMessageResponse first = sqs.sendMessage(
                r -> r.queueUrl(url).messageBody("one").messageGroupId("g").messageDeduplicationId("same"));
        SendMessageResponse second = sqs.sendMessage(
                r -> r.queueUrl(url).messageBody("two").messageGroupId("g").messageDeduplicationId("same"));

        equal(first.messageId(), second.messageId());
        equal(first.sequenceNumber(), second.sequenceNumber());
        equal(List.of("one"), sqs.receiveMessage(r -> everything(r, url)).messages().stream()
                .map(Message::body).toList());
    }

    // -- waiting and hiding

    private void longPollWoken() throws Exception {
        String url = queue();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        Future<Message> waiting = thread.submit(
                () -> sqs.receiveMessage(r -> r.queueUrl(url).waitTimeSeconds(20)).messages().get(0));
        Thread.sleep(300);

        send(url, "wake up");

        equal("wake up", waiting.get(10, TimeUnit.SECONDS).body());
        thread.shutdown();
    }

    private void emptyQueue() {
        String url = queue();

        var answer = sqs.receiveMessage(r -> r.queueUrl(url).waitTimeSeconds(1));

        equal(List.of(), answer.messages());
        check(!answer.hasMessages(), answer);
    }

    private void pollGivenUp() throws InterruptedException {
        String url = queue();
        thrown(ApiCallTimeoutException.class, () -> sqs.receiveMessage(r -> r.queueUrl(url).waitTimeSeconds(20)
                .overrideConfiguration(o -> o.apiCallTimeout(Duration.ofMillis(500)))));
        Thread.sleep(1000); // the server sees soon that nobody listens any more

        send(url, "for the living");

        equal("for the living", receiveOne(url).body());
    }

    private void changeVisibility() {
        String url = queue();
        send(url, "m");
        Message first = receiveOne(url);

        sqs.changeMessageVisibility(r -> r.queueUrl(url).receiptHandle(first.receiptHandle()).visibilityTimeout(600));
        boolean hidden = !sqs.receiveMessage(r -> r.queueUrl(url)).hasMessages();
        sqs.changeMessageVisibility(r -> r.queueUrl(url).receiptHandle(first.receiptHandle()).visibilityTimeout(0));
        Message second = receiveOne(url);

        check(hidden, "a hidden message was received");
        equal(first.messageId(), second.messageId());
        equal("2", second.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT));
    }

    // -- queues

    private void queues() {
        List<String> urls = List.of(queue(), queue(), queue());
        String shared = prefix + "-" + (queueCount - 3 + 1);
        check(urls.get(0).endsWith("/" + shared), urls);

        String found = sqs.getQueueUrl(r -> r.queueName(shared)).queueUrl();
        var page = sqs.listQueues(r -> r.queueNamePrefix(prefix).maxResults(2));
        Set<String> listed = new TreeSet<>(page.queueUrls());
        for (String token = page.nextToken(); token != null; ) {
            String next = token;
            var more = sqs.listQueues(r -> r.queueNamePrefix(prefix).maxResults(2).nextToken(next));
            listed.addAll(more.queueUrls());
            token = more.nextToken();
        }
        urls.forEach(url -> sqs.deleteQueue(r -> r.queueUrl(url)));

        equal(urls.get(0), found);
        equal(2, page.queueUrls().size());
        check(page.nextToken() != null, page);
        check(listed.containsAll(urls), listed);
        Set<String> left = new HashSet<>(sqs.listQueues(r -> r.queueNamePrefix(prefix)).queueUrls());
        check(urls.stream().noneMatch(left::contains), left);
    }

    private void queueAttributes() {
        String url = queue(Map.of(QueueAttributeName.DELAY_SECONDS, "3"));

        sqs.setQueueAttributes(r -> r.queueUrl(url).attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "77")));
        var all = sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNames(QueueAttributeName.ALL)).attributes();

        equal("3", all.get(QueueAttributeName.DELAY_SECONDS));
        equal("77", all.get(QueueAttributeName.VISIBILITY_TIMEOUT));
        equal("1048576", all.get(QueueAttributeName.MAXIMUM_MESSAGE_SIZE));
        equal("true", all.get(QueueAttributeName.SQS_MANAGED_SSE_ENABLED));
        check(!all.containsKey(QueueAttributeName.UNKNOWN_TO_SDK_VERSION), all);
        send(url, "later");
        equal(List.of(0, 0, 1), counts(url));
    }

    private void tags() {
        String url = queue();

        sqs.tagQueue(r -> r.queueUrl(url).tags(Map.of("team", "coffee", "stage", "test")));
        sqs.untagQueue(r -> r.queueUrl(url).tagKeys("stage"));

        equal(Map.of("team", "coffee"), sqs.listQueueTags(r -> r.queueUrl(url)).tags());
    }

    private void purge() throws Exception {
        String url = queue();
        send(url, "one", "two");
        receiveOne(url);

        sqs.purgeQueue(r -> r.queueUrl(url));

        eventually(() -> counts(url).equals(List.of(0, 0, 0)), () -> counts(url));
    }

    private void permission() {
        String url = queue();

        sqs.addPermission(
                r -> r.queueUrl(url).label("readers").awsAccountIds("111122223333").actions("ReceiveMessage"));
        String policy = policy(url);
        sqs.removePermission(r -> r.queueUrl(url).label("readers"));

        check(policy.contains("readers") && policy.contains("111122223333"), policy);
        check(!policy(url).contains("readers"), policy(url));
    }

    private String policy(String url) {
        return sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNames(QueueAttributeName.POLICY))
                .attributes().getOrDefault(QueueAttributeName.POLICY, "");
    }

    // -- dead letters

    private void moveBack() throws Exception {
        String dead = queue();
        String source = queueWithDeadLetters(dead);
        kill(source, dead, "one", "two");

        String handle = sqs.startMessageMoveTask(r -> r.sourceArn(arn(dead))).taskHandle();
        Set<String> back = bodies(receive(source, 2));
        eventually(() -> moveTask(dead).status().equals("COMPLETED"), () -> moveTask(dead));

        check(handle != null && !handle.isEmpty(), handle);
        equal(Set.of("one", "two"), back);
        equal(2L, moveTask(dead).approximateNumberOfMessagesMoved());
        equal(List.of(source), sqs.listDeadLetterSourceQueues(r -> r.queueUrl(dead)).queueUrls());
    }

    private void cancelMove() throws Exception {
        String dead = queue();
        String source = queueWithDeadLetters(dead);
        kill(source, dead, "1", "2", "3", "4", "5", "6", "7", "8", "9");

        String handle = sqs.startMessageMoveTask(
                r -> r.sourceArn(arn(dead)).maxNumberOfMessagesPerSecond(1)).taskHandle();
        equal(handle, moveTask(dead).taskHandle());
        sqs.cancelMessageMoveTask(r -> r.taskHandle(handle));
        eventually(() -> moveTask(dead).status().equals("CANCELLED"), () -> moveTask(dead));

        check(counts(dead).get(0) > 0, counts(dead));
    }

    private ListMessageMoveTasksResultEntry moveTask(String dead) {
        return sqs.listMessageMoveTasks(r -> r.sourceArn(arn(dead))).results().get(0);
    }

    private String queueWithDeadLetters(String dead) {
        return queue(Map.of(QueueAttributeName.REDRIVE_POLICY,
                "{\"deadLetterTargetArn\": \"" + arn(dead) + "\", \"maxReceiveCount\": 1}"));
    }

    /** Sends messages and receives them until they are in the dead-letter queue. */
    private void kill(String source, String dead, String... bodies) throws Exception {
        send(source, bodies);
        eventually(
                () -> {
                    sqs.receiveMessage(r -> r.queueUrl(source).maxNumberOfMessages(10).visibilityTimeout(0));
                    return counts(dead).get(0) == bodies.length;
                },
                () -> counts(dead));
    }

    // -- the network

    private void retriedSend() {
        String url = queue();
        SqsClient lossy = clients.at(System.getenv("SQS_LOSSY_ENDPOINT"));

        SendMessageResponse sent = lossy.sendMessage(r -> r.queueUrl(url).messageBody("once"));

        equal(List.of(1, 0, 0), counts(url));
        equal(sent.messageId(), receiveOne(url).messageId());
    }

    private void retriedBatch() {
        String url = queue();
        SqsClient lossy = clients.at(System.getenv("SQS_LOSSY_ENDPOINT"));

        var answer = lossy.sendMessageBatch(r -> r.queueUrl(url).entries(entry("a", "same"), entry("b", "same")));

        equal(2, answer.successful().size());
        equal(List.of(2, 0, 0), counts(url));
    }

    private void endpointFromEnvironment() {
        check(queue().startsWith(System.getenv("AWS_ENDPOINT_URL_SQS") + "/"), queue());
    }

    private void manyAtATime() throws Exception {
        String url = queue();
        ExecutorService threads = Executors.newFixedThreadPool(16);
        List<Callable<Void>> sends = IntStream.range(0, 40).mapToObj(number -> (Callable<Void>) () -> {
            send(url, Integer.toString(number));
            return null;
        }).toList();
        Set<String> received = Collections.synchronizedSet(new HashSet<>());
        List<Callable<Void>> receives = IntStream.range(0, 4).mapToObj(number -> (Callable<Void>) () -> {
            while (received.size() < 40) {
                for (Message message : sqs.receiveMessage(r -> everything(r, url).waitTimeSeconds(1)).messages()) {
                    check(received.add(message.body()), message);
                    sqs.deleteMessage(r -> r.queueUrl(url).receiptHandle(message.receiptHandle()));
                }
            }
            return null;
        }).toList();

        List<Callable<Void>> all = new ArrayList<>(sends);
        all.addAll(receives);
        for (Future<Void> done : threads.invokeAll(all, 30, TimeUnit.SECONDS)) {
            done.get();
        }

        threads.shutdown();
        equal(List.of(0, 0, 0), counts(url));
    }

    // -- errors

    private void wrongSecret() {
        SqsClient stranger = clients.with(System.getenv("AWS_ACCESS_KEY_ID"), "wrong".repeat(8));

        SqsException refusal = thrown(SqsException.class, () -> stranger.listQueues());

        equal(403, refusal.statusCode());
        equal("SignatureDoesNotMatch", refusal.awsErrorDetails().errorCode());
    }

    private void unknownKey() {
        SqsClient stranger = clients.with("AKIAIOSFODNN7EXAMPLE", "wrong".repeat(8));

        SqsException refusal = thrown(SqsException.class, () -> stranger.listQueues());

        equal(403, refusal.statusCode());
        equal("InvalidClientTokenId", refusal.awsErrorDetails().errorCode());
    }

    private void errorsWithoutClass() {
        String url = queue();
        String fifo = fifoQueue();

        SqsException invalid = thrown(
                SqsException.class, () -> sqs.receiveMessage(r -> r.queueUrl(url).maxNumberOfMessages(11)));
        SqsException missing = thrown(
                SqsException.class, () -> sqs.sendMessage(r -> r.queueUrl(fifo).messageBody("m")));

        equal(400, invalid.statusCode());
        equal("InvalidParameterValue", invalid.awsErrorDetails().errorCode());
        equal("MissingParameter", missing.awsErrorDetails().errorCode());
        check(invalid.requestId() != null, invalid);
    }

    private void errors() {
        catches("QueueDoesNotExist", QueueDoesNotExistException.class,
                () -> sqs.getQueueUrl(r -> r.queueName(prefix + "-none")));
        catches("QueueNameExists", QueueNameExistsException.class, () -> {
            String name = nameOf(queue());
            sqs.createQueue(r -> r.queueName(name).attributes(Map.of(QueueAttributeName.DELAY_SECONDS, "9")));
        });
        catches("QueueDeletedRecently", QueueDeletedRecentlyException.class, () -> {
            String url = queue();
            sqs.deleteQueue(r -> r.queueUrl(url));
            sqs.createQueue(r -> r.queueName(nameOf(url)));
        });
        catches("ReceiptHandleIsInvalid", ReceiptHandleIsInvalidException.class, () -> {
            String url = queue();
            sqs.deleteMessage(r -> r.queueUrl(url).receiptHandle("garbage"));
        });
        catches("PurgeQueueInProgress", PurgeQueueInProgressException.class, () -> {
            String url = queue();
            sqs.purgeQueue(r -> r.queueUrl(url));
            sqs.purgeQueue(r -> r.queueUrl(url));
        });
        catches("BatchEntryIdsNotDistinct", BatchEntryIdsNotDistinctException.class,
                () -> sendBatch(entry("a", "1"), entry("a", "2")));
        catches("EmptyBatchRequest", EmptyBatchRequestException.class, this::sendBatch);
        catches("TooManyEntriesInBatchRequest", TooManyEntriesInBatchRequestException.class,
                () -> sendBatch(IntStream.range(0, 11).mapToObj(number -> entry("e" + number, "m"))
                        .toArray(SendMessageBatchRequestEntry[]::new)));
        catches("InvalidBatchEntryId", InvalidBatchEntryIdException.class, () -> sendBatch(entry("not an id", "m")));
        catches("BatchRequestTooLong", BatchRequestTooLongException.class,
                () -> sendBatch(entry("a", "m".repeat(600_000)), entry("b", "m".repeat(600_000))));
        catches("InvalidMessageContents", InvalidMessageContentsException.class, () -> send(queue(), "\u0001"));
        catches("InvalidAttributeName", InvalidAttributeNameException.class, () -> {
            String url = queue();
            sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNamesWithStrings("Colour"));
        });
        catches("InvalidAttributeValue", InvalidAttributeValueException.class,
                () -> queue(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "-1")));
        catches("ResourceNotFoundException", ResourceNotFoundException.class,
                () -> sqs.startMessageMoveTask(r -> r.sourceArn(arn(queue()) + "-none")));
    }

    private void catches(String shape, Class<? extends SqsException> type, Report.Scenario scenario) {
        run("catches " + shape, () -> {
            SqsException error = thrown(type, scenario);
            check(!error.awsErrorDetails().errorMessage().isEmpty(), error);
        });
    }

    private void sendBatch(SendMessageBatchRequestEntry... entries) {
        String url = queue();
        sqs.sendMessageBatch(r -> r.queueUrl(url).entries(entries));
    }

    // -- small words

    private String queue() {
        return queue(Map.of());
    }

    private String queue(Map<QueueAttributeName, String> attributes) {
        String name = prefix + "-" + ++queueCount;
        return sqs.createQueue(r -> r.queueName(name).attributes(attributes)).queueUrl();
    }

    private String fifoQueue() {
        String name = prefix + "-" + ++queueCount + ".fifo";
        return sqs.createQueue(r -> r.queueName(name).attributes(Map.of(QueueAttributeName.FIFO_QUEUE, "true")))
                .queueUrl();
    }

    private static String nameOf(String url) {
        return url.substring(url.lastIndexOf('/') + 1);
    }

    private String arn(String url) {
        return sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNames(QUEUE_ARN)).attributes().get(QUEUE_ARN);
    }

    /** Returns how many messages are visible, in flight and delayed. */
    private List<Integer> counts(String url) {
        var attributes = sqs.getQueueAttributes(r -> r.queueUrl(url).attributeNames(
                APPROXIMATE_NUMBER_OF_MESSAGES,
                APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE,
                APPROXIMATE_NUMBER_OF_MESSAGES_DELAYED)).attributes();
        return List.of(
                Integer.parseInt(attributes.get(APPROXIMATE_NUMBER_OF_MESSAGES)),
                Integer.parseInt(attributes.get(APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE)),
                Integer.parseInt(attributes.get(APPROXIMATE_NUMBER_OF_MESSAGES_DELAYED)));
    }

    private void send(String url, String... bodies) {
        for (String body : bodies) {
            sqs.sendMessage(r -> r.queueUrl(url).messageBody(body));
        }
    }

    private Message receiveOne(String url) {
        return receive(url, 1).get(0);
    }

    private List<Message> receive(String url, int count) {
        List<Message> messages = new ArrayList<>();
        long end = System.nanoTime() + Duration.ofSeconds(15).toNanos();
        while (messages.size() < count) {
            check(System.nanoTime() < end, messages);
            messages.addAll(sqs.receiveMessage(r ->
                    everything(r, url).maxNumberOfMessages(Math.min(10, count - messages.size())).waitTimeSeconds(5))
                    .messages());
        }
        return messages;
    }

    private static ReceiveMessageRequest.Builder everything(ReceiveMessageRequest.Builder request, String url) {
        return request.queueUrl(url).maxNumberOfMessages(10).messageAttributeNames("All")
                .messageSystemAttributeNames(MessageSystemAttributeName.ALL);
    }

    private static Set<String> bodies(List<Message> messages) {
        return messages.stream().map(Message::body).collect(Collectors.toSet());
    }

    private static List<String> failures(List<BatchResultErrorEntry> failed) {
        return failed.stream().map(entry -> entry.id() + ":" + entry.code()).toList();
    }

    private static SendMessageBatchRequestEntry entry(String id, String body) {
        return SendMessageBatchRequestEntry.builder().id(id).messageBody(body).build();
    }

    private static MessageAttributeValue attribute(String type, String value) {
        return MessageAttributeValue.builder().dataType(type).stringValue(value).build();
    }
}
