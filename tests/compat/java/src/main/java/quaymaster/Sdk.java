package quaymaster;

/** All scenarios of the AWS SDK for Java 2. */
public final class Sdk {
    private Sdk() {}

    public static void main(String[] arguments) {
        for (Clients clients : Clients.values()) {
            new SdkScenarios(clients).run();
        }
        BatchManagerScenarios.run();
        System.exit(0); // Clients that a failed scenario left open must not keep the program.
    }
}
