import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own ordered consumer, as people write one: an id against doubles and the effect in one transaction, then success.
 * Arguments: name servers, group, topic, JDBC URL, threads, milliseconds of a handler. It ends with its input.
 */
public final class Orderly {
    private Orderly() {
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[3];
        int threads = Integer.parseInt(arguments[4]);
        long takes = Long.parseLong(arguments[5]);
        ThreadLocal<Connection> connections = ThreadLocal.withInitial(() -> open(url));
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(arguments[1], Peer.login(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    handle(connections.get(), message, takes);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            } catch (SQLException | InterruptedException failed) {
                failed.printStackTrace();
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
        });
        consumer.start();
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static Connection open(String url) {
        try {
            Connection connection = DriverManager.getConnection(url);
            connection.setAutoCommit(false);
            return connection;
        } catch (SQLException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static void handle(Connection connection, MessageExt message, long takes)
        throws SQLException, InterruptedException {
        try (PreparedStatement seen = connection.prepareStatement("INSERT INTO dedup VALUES (?) ON CONFLICT DO NOTHING");
            PreparedStatement effect = connection.prepareStatement("INSERT INTO effect (message_id, queue, at, member)"
                + " VALUES (?, ?, extract(epoch FROM clock_timestamp()), 'java')")) {
            seen.setString(1, message.getMsgId());
            if (seen.executeUpdate() == 1) {
                Thread.sleep(takes);
                effect.setString(1, message.getMsgId());
                effect.setInt(2, message.getQueueId());
                effect.executeUpdate();
            }
            connection.commit();
        } catch (SQLException | InterruptedException failed) {
            connection.rollback();
            throw failed;
        }
    }
}
