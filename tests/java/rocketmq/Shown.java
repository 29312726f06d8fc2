import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What the library knows of a message, as JSON. */
final class Shown {
    private Shown() {}

    static JSONObject message(MessageExt message) {
        JSONObject shown = new JSONObject();
        shown.put("topic", message.getTopic());
        shown.put("broker", message.getBrokerName());
        shown.put("queue", message.getQueueId());
        shown.put("offset", message.getQueueOffset());
        shown.put("physical", message.getCommitLogOffset());
        shown.put("offset_id", org.apache.rocketmq.common.message.MessageDecoder.createMessageId(
            message.getStoreHost(), message.getCommitLogOffset()));
        shown.put("uniq_key", message.getProperty("UNIQ_KEY"));
        shown.put("keys", message.getKeys());
        shown.put("tags", message.getTags());
        shown.put("body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()));
        shown.put("properties", message.getProperties());
        shown.put("retries", message.getReconsumeTimes());
        shown.put("born", message.getBornTimestamp());
        shown.put("stored", message.getStoreTimestamp());
        shown.put("flags", message.getSysFlag());
        return shown;
    }

    static JSONObject queue(MessageQueue queue) {
        JSONObject shown = new JSONObject();
        shown.put("topic", queue.getTopic());
        shown.put("broker", queue.getBrokerName());
        shown.put("queue", queue.getQueueId());
        return shown;
    }
}
