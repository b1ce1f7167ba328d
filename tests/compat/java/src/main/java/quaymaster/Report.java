package quaymaster;

import java.time.Duration;
import java.util.concurrent.Callable;

/** Runs scenarios and prints what came of each, one line of JSON; and the few words scenarios are written with. */
final class Report {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    interface Scenario {
        void run() throws Exception;
    }

    private Report() {}

    static void run(String name, Scenario scenario) {
        String error = null;
        try {
            scenario.run();
        } catch (Throwable thrown) {
            error = thrown + "\n" + whereIn(thrown);
        }
        System.out.println("{\"scenario\": " + quoted(name) + ", \"error\": " + quoted(error) + "}");
        System.out.flush();
    }

    static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError("found: " + found);
        }
    }

    static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected: " + expected + ", found: " + found);
        }
    }

    /** Returns the exception of this very class that the scenario throws. */
    static <T extends Throwable> T thrown(Class<T> type, Scenario scenario) {
        try {
            scenario.run();
        } catch (Throwable thrown) {
            if (thrown.getClass() == type) {
                return type.cast(thrown);
            }
            throw new AssertionError("expected: " + type.getSimpleName() + ", thrown: " + thrown, thrown);
        }
        throw new AssertionError("expected: " + type.getSimpleName() + ", nothing was thrown");
    }

    /** Waits until the question is answered with yes. */
    static void eventually(Callable<Boolean> question, Callable<Object> found) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!question.call()) {
            check(System.nanoTime() < end, found.call());
            Thread.sleep(50);
        }
    }

    private static String whereIn(Throwable thrown) {
        StringBuilder lines = new StringBuilder();
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            lines.append(cause == thrown ? "" : "caused by " + cause + "\n");
            for (StackTraceElement frame : cause.getStackTrace()) {
                if (frame.getClassName().startsWith("quaymaster")) {
                    lines.append("  at ").append(frame).append('\n');
                }
            }
        }
        return lines.toString();
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(c -> {
            if (c < ' ' || c > '~' || c == '"' || c == '\\') {
                quoted.append(String.format("\\u%04x", c));
            } else {
                quoted.append((char) c);
            }
        });
        return quoted.append('"').toString();
    }
}
