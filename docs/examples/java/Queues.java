import java.util.List;
import org.apache.rocketmq.common.message.Message;

/** What Backstop calls a queue of RocketMQ: one number, and one epoch for all. */
final class Queues {
    /** A topic of RocketMQ has no id of its own: every queue has this epoch. */
    static final String EPOCH = "0";
    /** As the option `brokers` in backstop.yaml; not set: topics lie on one broker, whatever its name is. */
    private static final String BROKERS = System.getenv("BROKERS");

    /** Whether the receipt of this message tells its place in the topic: a delayed one is first kept elsewhere, at another offset. */
    static boolean tellPlace(Message message) {
        return message.getDelayTimeLevel() == 0 && message.getDelayTimeSec() == 0 && message.getDelayTimeMs() == 0
            && message.getDeliverTimeMs() == 0;
    }

    /** Throws for a broker that BROKERS does not name: its queues would get the numbers of another's. */
    static int number(String broker, int queue) {
        if (BROKERS == null) {
            return queue;
        }
        int place = List.of(BROKERS.split(",")).indexOf(broker);
        if (place < 0) {
            throw new IllegalArgumentException("BROKERS does not name " + broker + ": add it at the end, as in backstop.yaml");
        }
        return place * 10_000 + queue;
    }
}
