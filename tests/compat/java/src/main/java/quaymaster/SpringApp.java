package quaymaster;

import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.listener.SqsHeaders;
import io.awspring.cloud.sqs.listener.Visibility;
import io.awspring.cloud.sqs.listener.acknowledgement.Acknowledgement;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.messaging.Message;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.stereotype.Component;

/** A Spring Boot application that listens on queues; the names of all begin with `compat.prefix`. */
@SpringBootApplication
class SpringApp {
    private static final String RECEIVE_COUNT =
            SqsHeaders.MessageSystemAttributes.SQS_APPROXIMATE_RECEIVE_COUNT;
    private static final String GROUP = SqsHeaders.MessageSystemAttributes.SQS_MESSAGE_GROUP_ID_HEADER;

    record Order(String item, int count) {}

    record InGroup(String group, String body) {}

    /** Listeners, and what each was given, in the order it came. */
    @Component
    static class Listeners {
        final BlockingQueue<Message<Order>> orders = new LinkedBlockingQueue<>();
        final BlockingQueue<List<Order>> batches = new LinkedBlockingQueue<>();
        final BlockingQueue<InGroup> inGroups = new LinkedBlockingQueue<>();
        final BlockingQueue<String> byHand = new LinkedBlockingQueue<>();
        final BlockingQueue<String> returned = new LinkedBlockingQueue<>();
        final BlockingQueue<String> slow = new LinkedBlockingQueue<>();
        final BlockingQueue<String> slowDone = new LinkedBlockingQueue<>();
        final AtomicInteger failures = new AtomicInteger();

        @SqsListener("${compat.prefix}-orders")
        void onOrder(Message<Order> order) {
            orders.add(order);
        }

        @SqsListener("${compat.prefix}-batches")
        void onBatch(List<Order> batch) {
            batches.add(batch);
        }

        @SqsListener("${compat.prefix}-groups.fifo")
        void onGroup(String body, @Header(GROUP) String group) {
            inGroups.add(new InGroup(group, body));
        }

        @SqsListener("${compat.prefix}-failing")
        void onFailing(String body) {
            failures.incrementAndGet();
            throw new IllegalStateException("this listener always fails");
        }

        /** Acknowledges what it sees again. */
        @SqsListener(
                value = "${compat.prefix}-by-hand", acknowledgementMode = "MANUAL", messageVisibilitySeconds = "1")
        void onByHand(String body, @Header(RECEIVE_COUNT) String count, Acknowledgement acknowledgement) {
            if (!count.equals("1")) {
                acknowledgement.acknowledge();
            }
            byHand.add(body + " " + count);
        }

        /** Gives back at once what it sees for the first time. */
        @SqsListener(value = "${compat.prefix}-returned", messageVisibilitySeconds = "600")
        void onReturned(String body, @Header(RECEIVE_COUNT) String count, Visibility visibility) {
            returned.add(body + " " + count);
            if (count.equals("1")) {
                visibility.changeTo(0);
                throw new IllegalStateException("this listener fails the first time");
            }
        }

        @SqsListener(value = "${compat.prefix}-slow", maxConcurrentMessages = "1", maxMessagesPerPoll = "1")
        void onSlow(String body) throws InterruptedException {
            slow.add(body);
            Thread.sleep(100);
            slowDone.add(body);
        }
    }
}
