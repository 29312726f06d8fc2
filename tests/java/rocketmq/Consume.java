import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

/**
 * RocketMQ's push consumer, concurrent, ordered or POP. It says what it begins and how that ends, fails as often as it was told,
 * and holds a batch in its hands until it is released (or killed).
 *
 * Order: name, group, topics ({topic: tags}), mode, limit (deliveries before the dead letter; -1: the group's), batch (messages a
 * call), fail (times that each message fails; -1: always), fail_keys ({KEYS: times}), hold (wait for "release"), level (delay level
 * of a failure), broker (address, for POP).
 */
final class Consume {
    private final String name;
    private final DefaultMQPushConsumer consumer;
    private final Semaphore allowed = new Semaphore(0);
    private final boolean hold;
    private final JSONObject order;
    private volatile boolean healed;

    Consume(Peer peer, JSONObject order) throws Exception {
        this.order = order;
        name = order.getString("name");
        hold = order.getBooleanValue("hold");
        String mode = order.getString("mode");
        consumer = new DefaultMQPushConsumer(order.getString("group"), Peer.login(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(peer.namesrv);
        consumer.setInstanceName(name);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(order.getIntValue("batch", 1));
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes(order.getIntValue("limit", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(200);
        JSONObject topics = order.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, topics.getString(topic));
        }
        if (mode.equals("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                worked(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(order.getIntValue("level"));
                return worked(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        if (mode.equals("pop")) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(order.getLongValue("invisible_ms", 10000));
            for (String topic : topics.keySet()) {
                new Oracle(peer).requestMode(order.getString("broker"), topic, order.getString("group"), MessageRequestMode.POP);
            }
        }
        consumer.start();
        if (mode.equals("pop")) {
            retryEachSecond();
        }
    }

    int release(int messages) {
        allowed.release(messages);
        return allowed.availablePermits();
    }

    /** From now on nothing fails and nothing is held. */
    boolean heal() {
        healed = true;
        allowed.release(1_000_000);
        return true;
    }

    boolean close() {
        healed = true;
        allowed.release(1_000_000);
        consumer.shutdown();
        return true;
    }

    /** One call of the library, of one message or of several: it succeeds or fails as a whole. */
    private boolean worked(List<MessageExt> messages) {
        JSONArray shown = new JSONArray();
        boolean good = true;
        for (MessageExt message : messages) {
            shown.add(Shown.message(message));
            good &= !fails(message);
        }
        tell("begun", shown, null);
        if (hold) {
            allowed.acquireUninterruptibly(messages.size());
        }
        tell("ended", shown, good || healed);
        return good || healed;
    }

    private boolean fails(MessageExt message) {
        JSONObject keys = order.getJSONObject("fail_keys");
        int times = keys != null && message.getKeys() != null && keys.containsKey(message.getKeys())
            ? keys.getIntValue(message.getKeys()) : order.getIntValue("fail");
        return !healed && (times < 0 || message.getReconsumeTimes() < times);
    }

    private void tell(String event, JSONArray messages, Boolean good) {
        JSONObject line = new JSONObject();
        line.put("event", event);
        line.put("consumer", name);
        line.put("messages", messages);
        line.put("good", good);
        Peer.say(line);
    }

    /** A failed POP message comes again after 10 s, then 30 s, and no setting changes that. */
    private void retryEachSecond() throws ReflectiveOperationException {
        Object inside = consumer.getDefaultMQPushConsumerImpl();
        Field delays = inside.getClass().getDeclaredField("popDelayLevel");
        delays.setAccessible(true);
        Arrays.fill((int[]) delays.get(inside), 1);
    }
}
