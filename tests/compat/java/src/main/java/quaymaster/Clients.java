package quaymaster;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;

/** The two clients of the SDK, made alike. What is not given comes from the environment, as the SDK reads it. */
enum Clients {
    SYNC {
        @Override
        SqsClient make(URI endpoint, AwsBasicCredentials credentials) {
            return configured(SqsClient.builder(), endpoint, credentials).build();
        }
    },

    /** The asynchronous client, each of whose answers is waited for: so it does all that the other is asked to. */
    ASYNC {
        @Override
        SqsClient make(URI endpoint, AwsBasicCredentials credentials) {
            return waitingFor(configured(SqsAsyncClient.builder(), endpoint, credentials).build());
        }
    };

    abstract SqsClient make(URI endpoint, AwsBasicCredentials credentials);

    SqsClient fromEnvironment() {
        return make(null, null);
    }

    SqsClient at(String endpoint) {
        return make(URI.create(endpoint), null);
    }

    SqsClient with(String accessKeyId, String secretAccessKey) {
        return make(null, AwsBasicCredentials.create(accessKeyId, secretAccessKey));
    }

    private static <B extends AwsClientBuilder<B, C>, C> B configured(
            B builder, URI endpoint, AwsBasicCredentials credentials) {
        if (endpoint != null) {
            builder.endpointOverride(endpoint);
        }
        if (credentials != null) {
            builder.credentialsProvider(StaticCredentialsProvider.create(credentials));
        }
        return builder;
    }

    private static SqsClient waitingFor(SqsAsyncClient client) {
        return (SqsClient) Proxy.newProxyInstance(
                SqsClient.class.getClassLoader(), new Class<?>[] {SqsClient.class}, (proxy, method, arguments) -> {
                    try {
                        Object answer = SqsAsyncClient.class
                                .getMethod(method.getName(), method.getParameterTypes())
                                .invoke(client, arguments);
                        return answer instanceof CompletableFuture<?> future ? future.join() : answer;
                    } catch (InvocationTargetException | CompletionException wrapped) {
                        throw wrapped.getCause();
                    }
                });
    }
}
