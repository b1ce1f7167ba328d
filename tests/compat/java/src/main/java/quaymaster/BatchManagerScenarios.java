package quaymaster;

import static quaymaster.Report.check;
import static quaymaster.Report.equal;
import static quaymaster.Report.eventually;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.batchmanager.SqsAsyncBatchManager;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;

/** The batch manager of the SDK, which gathers single calls into batches and receives ahead. */
final class BatchManagerScenarios {
    private static final int COUNT = 37;

    private BatchManagerScenarios() {}

    static void run() {
        Report.run("batch manager: sends, receives and deletes many in batches", BatchManagerScenarios::many);
    }

    private static void many() throws Exception {
        try (SqsAsyncClient sqs = SqsAsyncClient.create();
                SqsAsyncBatchManager manager = sqs.batchManager()) {
            String url = sqs.createQueue(r -> r.queueName("java-batch-" + UUID.randomUUID())).join().queueUrl();

            List<CompletableFuture<SendMessageResponse>> sends = new ArrayList<>();
            for (int number = 0; number < COUNT; number++) {
                String body = Integer.toString(number);
                sends.add(manager.sendMessage(r -> r.queueUrl(url).messageBody(body)));
            }
            Set<String> sent = new HashSet<>();
            for (var send : sends) {
                sent.add(send.get(10, TimeUnit.SECONDS).messageId());
            }
            Set<String> received = new HashSet<>();
            List<CompletableFuture<?>> deletes = new ArrayList<>();
            eventually(
                    () -> {
                        var answer = manager.receiveMessage(r -> r.queueUrl(url)).get(10, TimeUnit.SECONDS);
                        for (Message message : answer.messages()) {
                            check(received.add(message.messageId()), message);
                            deletes.add(manager.deleteMessage(
                                    r -> r.queueUrl(url).receiptHandle(message.receiptHandle())));
                        }
                        return received.size() == COUNT;
                    },
                    () -> received.size());
            for (var delete : deletes) {
                delete.get(10, TimeUnit.SECONDS);
            }

            equal(sent, received);
            equal("0", sqs.getQueueAttributes(r -> r.queueUrl(url)
                            .attributeNames(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE))
                    .join().attributes().get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));
        }
    }
}
