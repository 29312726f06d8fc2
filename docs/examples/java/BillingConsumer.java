import static java.util.Map.entry;

import java.net.InetAddress;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A RocketMQ push consumer that takes part in Backstop: it writes an invoice for each order, once, and its log by the wire
 * contract.
 *
 * Arguments: name servers, group, topic. Environment: DATABASE_URL (jdbc:postgresql://...), DATABASE_USER, DATABASE_PASSWORD, and
 * BROKERS (names of the masters, where backstop.yaml has the option `brokers`). It runs until it is stopped.
 */
public final class BillingConsumer {
    private static final double LEASE_SECONDS = Double.parseDouble(System.getenv().getOrDefault("LEASE_SECONDS", "60"));

    private final String group;
    private final String host;

    private BillingConsumer(String group) throws Exception {
        this.group = group;
        host = InetAddress.getLocalHost().getHostName();
    }

    public static void main(String[] arguments) throws Exception {
        BillingConsumer billing = new BillingConsumer(arguments[1]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1); // a call's answer is for all of its messages
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            billing.consume(messages.get(0), context));
        consumer.start();
        System.out.println("consuming");
    }

    /** CONSUME_SUCCESS only after the commit of the log; whatever else happens, the message comes again. */
    private ConsumeConcurrentlyStatus consume(MessageExt message, ConsumeConcurrentlyContext context) {
        try {
            Incoming order = new Incoming(message);
            return !order.isFor(group) || handled(order, context)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        } catch (Exception failed) {
            System.err.println("will come again: " + failed);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
    }

    private boolean handled(Incoming order, ConsumeConcurrentlyContext context) throws SQLException {
        UUID token = UUID.randomUUID();
        try (Connection database = connect()) {
            String refused = begin(database, order, token);
            database.commit(); // the log of the receipt, before the work
            if (refused != null) {
                context.setDelayLevelWhenNextConsume(refused.equals("BUSY") ? 4 : 0); // 4: half a minute; 0: the broker's next
                return refused.equals("DONE") || refused.equals("SUPERSEDED");
            }
            try {
                writeInvoice(database, order);
                complete(database, order, token);
                database.commit(); // the effect and the log, or neither
                return true;
            } catch (SQLException | RuntimeException failed) {
                database.rollback();
                fail(database, order, token, failed);
                database.commit();
                throw failed;
            }
        }
    }

    /** The business of this service. */
    private static void writeInvoice(Connection database, Incoming order) throws SQLException {
        try (PreparedStatement insert = database.prepareStatement("INSERT INTO invoice (order_id, content) VALUES (?, ?)")) {
            insert.setString(1, order.id);
            insert.setBytes(2, order.content);
            insert.executeUpdate();
        }
    }

    // -- the wire contract -----------------------------------------------------------------------------------

    /** Null: the lease is ours, begin the work. Else why not. */
    private String begin(Connection database, Incoming order, UUID token) throws SQLException {
        Map<String, Object> values = key(database, order);
        values.put("queue_ids", ContractSql.one(database, "integer", order.queue));
        values.put("queue_offsets", ContractSql.one(database, "bigint", order.offset));
        values.put("queue_epochs", ContractSql.one(database, "text", order.queue == null ? null : Queues.EPOCH));
        values.put("tokens", ContractSql.one(database, "uuid", token));
        values.put("payload_hashes", ContractSql.one(database, "bytea", order.hash));
        values.put("content_versions", ContractSql.one(database, "integer", order.version));
        values.put("lease_seconds", LEASE_SECONDS);
        values.put("owner_host", host);
        try (PreparedStatement begin = ContractSql.prepare(database, "begin", values); ResultSet granted = begin.executeQuery()) {
            if (granted.next()) {
                return null;
            }
        }
        try (PreparedStatement ask = ContractSql.prepare(database, "refused", values); ResultSet why = ask.executeQuery()) {
            return why.next() ? why.getString("outcome") : "BUSY";
        }
    }

    private void complete(Connection database, Incoming order, UUID token) throws SQLException {
        Map<String, Object> values = key(database, order);
        values.put("tokens", ContractSql.one(database, "uuid", token));
        try (PreparedStatement complete = ContractSql.prepare(database, "complete", values);
                ResultSet ours = complete.executeQuery()) {
            if (!ours.next()) {
                throw new IllegalStateException("somebody else has taken over " + order.id);
            }
        }
    }

    /** Without a row somebody else has taken over, and nothing is to be said. */
    private void fail(Connection database, Incoming order, UUID token, Exception failed) throws SQLException {
        Map<String, Object> values = new HashMap<>(Map.ofEntries(
            entry("group", group), entry("topic", order.topic), entry("message_id", order.id), entry("token", token),
            entry("error", String.valueOf(failed))));
        try (PreparedStatement fail = ContractSql.prepare(database, "fail", values)) {
            fail.executeQuery().close();
        }
    }

    private Map<String, Object> key(Connection database, Incoming order) throws SQLException {
        return new HashMap<>(Map.ofEntries(
            entry("group", group), entry("topics", ContractSql.one(database, "text", order.topic)),
            entry("message_ids", ContractSql.one(database, "text", order.id))));
    }

    /** A service takes it from its pool. */
    private static Connection connect() throws SQLException {
        Connection database = DriverManager.getConnection(
            System.getenv("DATABASE_URL"), System.getenv("DATABASE_USER"), System.getenv("DATABASE_PASSWORD"));
        database.setAutoCommit(false);
        return database;
    }
}
