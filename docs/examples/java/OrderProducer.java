import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * A RocketMQ producer that takes part in Backstop: an order and its stub are one transaction, the send follows it, and what
 * died in between is Backstop's to send.
 *
 * Arguments: name servers, topic, order ids. Environment: DATABASE_URL (jdbc:postgresql://...), DATABASE_USER, DATABASE_PASSWORD,
 * BROKER (the broker's name in backstop.yaml), and BROKERS (names of the masters, where that file has the option `brokers`).
 */
public final class OrderProducer {
    /** The policy's max_send_duration, attempt_timeout and first_check, as backstop.yaml has them. */
    private static final double MAX_SEND_SECONDS = setting("MAX_SEND_SECONDS", 30);
    private static final double ATTEMPT_TIMEOUT_SECONDS = setting("ATTEMPT_TIMEOUT_SECONDS", 120);
    private static final double FIRST_CHECK_SECONDS = setting("FIRST_CHECK_SECONDS", 120);
    /** The broker's answers that say it has not stored the message. */
    private static final List<Integer> CERTAINLY_NOT = List.of(
        ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST);

    private final DefaultMQProducer producer = new DefaultMQProducer("orders-service");

    public static void main(String[] arguments) throws Exception {
        OrderProducer orders = new OrderProducer();
        orders.producer.setNamesrvAddr(arguments[0]);
        orders.producer.setRetryTimesWhenSendFailed(0); // the client's own retries are off: each would be another copy
        orders.producer.setSendMsgTimeout((int) (MAX_SEND_SECONDS * 900)); // milliseconds: nine tenths of it
        orders.producer.start();
        try {
            for (int i = 2; i < arguments.length; i++) {
                System.out.println(arguments[i] + " " + orders.place(arguments[1], arguments[i]));
            }
        } finally {
            orders.producer.shutdown();
        }
    }

    private String place(String topic, String id) throws SQLException {
        UUID token = UUID.randomUUID();
        byte[] content = ("{\"order\": \"" + id + "\"}").getBytes(StandardCharsets.UTF_8);
        try (Connection database = connect()) {
            writeOrder(database, id);
            record(database, topic, id, content, token);
            database.commit(); // the order and its stub, or neither
            boolean mayPublish = look(database, topic, id, token);
            database.commit();
            if (!mayPublish) {
                return "left to Backstop"; // its attempt ends by its deadline
            }
            Map<String, Object> how = publish(database, topic, id, content);
            settle(database, topic, id, token, how);
            database.commit();
            return String.valueOf(how.get("outcome"));
        }
    }

    /** The business of this service. */
    private static void writeOrder(Connection database, String id) throws SQLException {
        try (PreparedStatement insert = database.prepareStatement("INSERT INTO shop_order (order_id) VALUES (?)")) {
            insert.setString(1, id);
            insert.executeUpdate();
        }
    }

    // -- the wire contract -----------------------------------------------------------------------------------

    private static void record(Connection database, String topic, String id, byte[] content, UUID token) throws SQLException {
        Map<String, Object> values = key(database, topic, id, token);
        for (String name : List.of("message_keys", "tags", "ordering_keys")) {
            values.put(name, ContractSql.one(database, "text", null));
        }
        values.put("sequences", ContractSql.one(database, "bigint", null));
        values.put("headers", ContractSql.one(database, "jsonb", "{}"));
        values.put("contents", ContractSql.one(database, "bytea", content));
        values.put("content_types", ContractSql.one(database, "text", "application/json"));
        values.put("deliver_at", ContractSql.one(database, "timestamptz", null));
        values.put("first_check_seconds", FIRST_CHECK_SECONDS);
        values.put("attempt_timeout_seconds", ATTEMPT_TIMEOUT_SECONDS);
        try (PreparedStatement record = ContractSql.prepare(database, "record", values); ResultSet made = record.executeQuery()) {
            if (!made.next()) {
                throw new IllegalStateException(id + " was recorded before");
            }
        }
    }

    private static boolean look(Connection database, String topic, String id, UUID token) throws SQLException {
        long asked = System.nanoTime();
        try (PreparedStatement look = ContractSql.prepare(database, "look_before_send", key(database, topic, id, token));
                ResultSet seen = look.executeQuery()) {
            seen.next();
            double passed = (System.nanoTime() - asked) / 1e9;
            return seen.getBoolean("recorded") && !seen.getBoolean("in_transaction") && seen.getBoolean("ours")
                && seen.getDouble("early_seconds") == 0 && seen.getDouble("seconds_left") - passed > MAX_SEND_SECONDS;
        }
    }

    /** How it ended, as settle takes it. A timeout, a lost connection, whatever is not certain: "unknown", never "refused". */
    private Map<String, Object> publish(Connection database, String topic, String id, byte[] content) throws SQLException {
        String outcome = "unknown", error = null;
        SendResult sent = null;
        boolean placed = false;
        try {
            Message message = new Message(topic, content);
            message.putUserProperty("backstop-message-id", id);
            message.putUserProperty("backstop-send-number", "1");
            message.putUserProperty("content-type", "application/json");
            if (!id.contains(" ")) {
                message.setKeys(id); // the broker's index
            }
            sent = producer.send(message, (queues, any, argument) -> queueOf(queues, id), null);
            placed = Queues.tellPlace(message);
            outcome = "sent"; // also when it was not flushed, or no replica has it, in time: it is stored
        } catch (MQBrokerException refused) {
            outcome = CERTAINLY_NOT.contains(refused.getResponseCode()) ? "refused" : "unknown";
            error = refused.toString();
        } catch (RemotingConnectException never) {
            outcome = "refused"; // nothing was written
            error = never.toString();
        } catch (Exception failed) {
            error = failed.toString();
        }
        Map<String, Object> how = new HashMap<>();
        how.put("outcome", outcome);
        how.put("outcomes", ContractSql.one(database, "text", outcome));
        how.put("errors", ContractSql.one(database, "text", error));
        how.put("queue_ids", ContractSql.one(database, "integer", !placed ? null
            : Queues.number(sent.getMessageQueue().getBrokerName(), sent.getMessageQueue().getQueueId())));
        how.put("queue_epochs", ContractSql.one(database, "text", !placed ? null : Queues.EPOCH));
        how.put("queue_offsets", ContractSql.one(database, "bigint", !placed ? null : sent.getQueueOffset()));
        how.put("broker_message_ids", ContractSql.one(database, "text", sent == null ? null : sent.getMsgId()));
        return how;
    }

    private static void settle(Connection database, String topic, String id, UUID token, Map<String, Object> how)
            throws SQLException {
        Map<String, Object> values = key(database, topic, id, token);
        values.putAll(how);
        values.put("max_send_seconds", ContractSql.one(database, "float8", MAX_SEND_SECONDS));
        values.put("broker", System.getenv("BROKER"));
        try (PreparedStatement settle = ContractSql.prepare(database, "settle", values)) {
            settle.executeQuery().close(); // no row: Backstop recovered it meanwhile, and nothing is to be done
        }
    }

    /** The queue that Backstop sends copies to as well: by the ordering key, or the id. */
    private static MessageQueue queueOf(List<MessageQueue> queues, String key) {
        CRC32 sum = new CRC32();
        sum.update(key.getBytes(StandardCharsets.UTF_8));
        List<MessageQueue> ordered = new ArrayList<>(queues);
        ordered.sort(Comparator.comparingInt((MessageQueue queue) -> Queues.number(queue.getBrokerName(), queue.getQueueId())));
        return ordered.get((int) (sum.getValue() % ordered.size()));
    }

    private static Map<String, Object> key(Connection database, String topic, String id, UUID token) throws SQLException {
        Map<String, Object> values = new HashMap<>();
        values.put("topics", ContractSql.one(database, "text", topic));
        values.put("message_ids", ContractSql.one(database, "text", id));
        values.put("tokens", ContractSql.one(database, "uuid", token));
        return values;
    }

    private static double setting(String name, double usual) {
        return Double.parseDouble(System.getenv().getOrDefault(name, String.valueOf(usual)));
    }

    /** A service takes it from its pool. */
    private static Connection connect() throws SQLException {
        Connection database = DriverManager.getConnection(
            System.getenv("DATABASE_URL"), System.getenv("DATABASE_USER"), System.getenv("DATABASE_PASSWORD"));
        database.setAutoCommit(false);
        return database;
    }
}
