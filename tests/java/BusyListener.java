import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import javax.jms.BytesMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.Session;
import javax.jms.TextMessage;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.RedeliveryPolicy;

/**
 * A consumer as other programs have it: a JMS listener on a failover connection, AUTO_ACKNOWLEDGE, that writes its log by
 * the wire contract. It is busy with a message until a line on its input says how that ends: "done ID", "fail ID", or "abandon ID" (it fails and writes nothing of it).
 * "map QUEUE" sends a JMS map message there, "texts QUEUE" what only clients in Java can write.
 *
 * Arguments: URL, queue, group, topic. Environment: BROKER_USER, BROKER_PASSWORD, LOG_JDBC, LOG_USER, LOG_PASSWORD.
 * Output, one line each: "> started ID", "> known ID", "> done ID", "> failed ID", "> resumed".
 */
public final class BusyListener {
    private static final PrintStream SAY = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true);
    private static final Map<String, CountDownLatch> WORKING = new ConcurrentHashMap<>();
    private static final Map<String, String> ENDS = new ConcurrentHashMap<>();

    private static final String BEGIN =
        "INSERT INTO consumer_log AS l (consumer_group, topic, message_id, state, owner_token, fence, lease_expires_at, attempts,"
        + " first_received_at, updated_at, payload_hash, content_version, owner_host)"
        + " VALUES (?, ?, ?, 'CONSUMING', ?, 1, statement_timestamp() + interval '60 seconds', 1, statement_timestamp(),"
        + " statement_timestamp(), ?, 1, 'java')"
        + " ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET state = 'CONSUMING', owner_token = excluded.owner_token,"
        + " fence = l.fence + 1, lease_expires_at = excluded.lease_expires_at, attempts = l.attempts + 1,"
        + " updated_at = excluded.updated_at, owner_host = excluded.owner_host"
        + " WHERE l.state IN ('FAILED', 'EXPIRED') OR (l.state = 'CONSUMING' AND l.lease_expires_at <= statement_timestamp())"
        + " RETURNING l.fence";
    private static final String COMPLETE =
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = clock_timestamp(), updated_at = clock_timestamp(),"
        + " lease_expires_at = clock_timestamp() WHERE consumer_group = ? AND topic = ? AND message_id = ? AND owner_token = ?"
        + " AND state IN ('CONSUMING', 'EXPIRED') RETURNING fence";
    private static final String FAIL =
        "UPDATE consumer_log SET state = 'FAILED', last_error = 'Connection refused by the till', updated_at = clock_timestamp(),"
        + " lease_expires_at = clock_timestamp() WHERE consumer_group = ? AND topic = ? AND message_id = ? AND owner_token = ?"
        + " AND state IN ('CONSUMING', 'EXPIRED') RETURNING fence";

    public static void main(String[] arguments) throws Exception {
        String group = arguments[2], topic = arguments[3];
        ActiveMQConnectionFactory factory =
            new ActiveMQConnectionFactory(System.getenv("BROKER_USER"), System.getenv("BROKER_PASSWORD"), arguments[0]);
        RedeliveryPolicy policy = new RedeliveryPolicy();
        policy.setMaximumRedeliveries(Integer.getInteger("redeliveries", 6));
        policy.setInitialRedeliveryDelay(10);
        policy.setRedeliveryDelay(10);
        factory.setRedeliveryPolicy(policy);
        ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
        connection.addTransportListener(new org.apache.activemq.transport.DefaultTransportListener() {
            @Override
            public void transportResumed() {
                SAY.println("> resumed");
            }
        });
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(arguments[1]));
        consumer.setMessageListener(message -> {
            try {
                consume(message, group, topic);
            } catch (RuntimeException failed) {
                throw failed;
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        });
        connection.start();
        SAY.println("> listening");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ", 2);
            if (words[0].equals("map")) {
                Session other = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                javax.jms.MapMessage map = other.createMapMessage();
                map.setString("total", "12");
                map.setStringProperty("backstop-message-id", "map");
                other.createProducer(other.createQueue(words[1])).send(map);
                other.close();
                SAY.println("> sent a map");
                continue;
            }
            if (words[0].equals("texts")) {
                Session other = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                javax.jms.MessageProducer producer = other.createProducer(other.createQueue(words[1]));
                String[][] properties = {
                    {"content-length", "3"}, {"content-length", "1000000"}, {"content-length", "x"}, {"browser", "end"},
                    {"timestamp", "9999999999999"}, {"message-id", "ID:1"}, {"message-id", "ID:1"}, {"destination", "/queue/x"},
                };
                for (int place = 0; place < properties.length; place++) {
                    TextMessage text = other.createTextMessage("a\u0000\uD83D\uDE00 " + place);
                    text.setStringProperty("backstop-message-id", "m-" + place);
                    text.setStringProperty(properties[place][0], properties[place][1]);
                    producer.send(text);
                }
                other.close();
                SAY.println("> sent texts");
                continue;
            }
            ENDS.put(words[1], words[0]);
            latch(words[1]).countDown();
        }
        connection.close();
    }

    private static CountDownLatch latch(String id) {
        return WORKING.computeIfAbsent(id, any -> new CountDownLatch(1));
    }

    private static void consume(Message message, String group, String topic) throws Exception {
        String id = message.getStringProperty("backstop-message-id");
        UUID token = UUID.randomUUID();
        try (Connection log = DriverManager.getConnection(
                System.getenv("LOG_JDBC"), System.getenv("LOG_USER"), System.getenv("LOG_PASSWORD"))) {
            if (!changes(log, BEGIN, group, topic, id, token, MessageDigest.getInstance("SHA-256").digest(content(message)))) {
                SAY.println("> known " + id);
                return; // done before: acknowledge
            }
            SAY.println("> started " + id);
            latch(id).await();
            WORKING.remove(id);
            if (!ENDS.get(id).equals("done")) {
                if (ENDS.get(id).equals("fail")) {
                    changes(log, FAIL, group, topic, id, token, null);
                }
                SAY.println("> failed " + id);
                throw new IllegalStateException("The till is closed");
            }
            if (!changes(log, COMPLETE, group, topic, id, token, null)) {
                throw new IllegalStateException("somebody else has it");
            }
            SAY.println("> done " + id);
        }
    }

    private static byte[] content(Message message) throws Exception {
        if (message instanceof TextMessage) {
            return ((TextMessage) message).getText().getBytes("UTF-8");
        }
        BytesMessage body = (BytesMessage) message;
        byte[] found = new byte[(int) body.getBodyLength()];
        body.readBytes(found);
        return found;
    }

    private static boolean changes(
            Connection log, String statement, String group, String topic, String id, UUID token, byte[] hash) throws Exception {
        try (PreparedStatement prepared = log.prepareStatement(statement)) {
            prepared.setString(1, group);
            prepared.setString(2, topic);
            prepared.setString(3, id);
            prepared.setObject(4, token);
            if (hash != null) {
                prepared.setBytes(5, hash);
            }
            try (ResultSet changed = prepared.executeQuery()) {
                return changed.next();
            }
        }
    }
}
