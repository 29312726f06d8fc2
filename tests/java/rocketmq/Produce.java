import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/** RocketMQ's producer: synchronous sends, one after the other, or as one batch; it retries nothing, so one send is one send. */
final class Produce {
    private final Peer peer;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();

    Produce(Peer peer) {
        this.peer = peer;
    }

    /** Order: group, compress (bytes from which on bodies are compressed; 0: never), batch, messages. Answer: one entry a message. */
    JSONArray send(JSONObject order) throws Exception {
        DefaultMQProducer producer = producer(order.getString("group"), order.getIntValue("compress"));
        List<Message> messages = new ArrayList<>();
        JSONArray wanted = order.getJSONArray("messages"), answers = new JSONArray();
        for (int i = 0; i < wanted.size(); i++) {
            messages.add(message(wanted.getJSONObject(i)));
        }
        if (order.getBooleanValue("batch")) {
            answers.add(shown(producer.send(messages)));
            return answers;
        }
        for (int i = 0; i < messages.size(); i++) {
            try {
                answers.add(shown(sent(producer, messages.get(i), wanted.getJSONObject(i))));
            } catch (Exception failed) {
                JSONObject answer = new JSONObject();
                answer.put("error", failed + ", because of " + failed.getCause());
                answers.add(answer);
            }
        }
        return answers;
    }

    private static SendResult sent(DefaultMQProducer producer, Message message, JSONObject wanted) throws Exception {
        if (wanted.containsKey("sharding")) {
            return producer.send(message, new SelectMessageQueueByHash(), wanted.getString("sharding"));
        }
        if (wanted.containsKey("queue")) {
            int queue = wanted.getIntValue("queue");
            return producer.send(message, (queues, any, argument) ->
                queues.stream().filter(one -> one.getQueueId() == queue).findFirst().get(), null);
        }
        return producer.send(message);
    }

    private static Message message(JSONObject wanted) {
        Message message = new Message(
            wanted.getString("topic"), wanted.getString("tags"), wanted.getString("keys"),
            Base64.getDecoder().decode(wanted.getString("body")));
        if (wanted.containsKey("sharding")) {
            message.putUserProperty("__SHARDINGKEY", wanted.getString("sharding"));
        }
        if (wanted.containsKey("level")) {
            message.setDelayTimeLevel(wanted.getIntValue("level"));
        }
        if (wanted.containsKey("delay_ms")) {
            message.setDelayTimeMs(wanted.getLongValue("delay_ms"));
        }
        JSONObject properties = wanted.getJSONObject("properties");
        for (String name : properties == null ? java.util.Set.<String>of() : properties.keySet()) {
            message.putUserProperty(name, properties.getString(name));
        }
        return message;
    }

    private static JSONObject shown(SendResult result) {
        JSONObject shown = Shown.queue(result.getMessageQueue());
        shown.put("status", result.getSendStatus().name());
        shown.put("offset", result.getQueueOffset());
        shown.put("uniq_key", result.getMsgId());
        shown.put("offset_id", result.getOffsetMsgId());
        return shown;
    }

    private synchronized DefaultMQProducer producer(String group, int compress) throws Exception {
        DefaultMQProducer producer = producers.get(group + compress);
        if (producer == null) {
            producer = new DefaultMQProducer(group, Peer.login());
            producer.setNamesrvAddr(peer.namesrv);
            producer.setInstanceName(group + compress);
            producer.setVipChannelEnabled(false);
            producer.setRetryTimesWhenSendFailed(0);
            producer.setPollNameServerInterval(1000);
            producer.setSendMsgTimeout(20_000);
            producer.setCompressMsgBodyOverHowmuch(compress > 0 ? compress : Integer.MAX_VALUE);
            producer.start();
            producers.put(group + compress, producer);
        }
        return producer;
    }
}
