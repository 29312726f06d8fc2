import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import org.apache.rocketmq.common.message.MessageExt;

/** What the wire contract wants to know of a received message. */
final class Incoming {
    final String topic;
    final String id;
    final byte[] content;
    final byte[] hash;
    final int version;
    final Integer queue;
    final Long offset;
    private final List<String> groups;

    /** Throws when a header of the contract cannot be read. */
    Incoming(MessageExt message) {
        topic = message.getTopic();
        id = header(message, "backstop-message-id");
        if (id == null || id.isEmpty() || id.getBytes(java.nio.charset.StandardCharsets.UTF_8).length > 1024) {
            throw new IllegalArgumentException("no usable message id");
        }
        content = message.getBody();
        hash = sha256(content);
        String number = header(message, "backstop-content-version");
        version = number == null ? 1 : Integer.parseInt(number);
        String only = header(message, "backstop-groups");
        groups = only == null ? null : JSON.parseArray(only, String.class);
        // A retry's queue and offset are those of the group's retry topic: only the topic's own are recorded.
        boolean original = message.getProperty("RETRY_TOPIC") == null;
        queue = original ? Queues.number(message.getBrokerName(), message.getQueueId()) : null;
        offset = original ? message.getQueueOffset() : null;
        if (version < 1) {
            throw new IllegalArgumentException("version " + version);
        }
    }

    boolean isFor(String group) {
        return groups == null || groups.contains(group);
    }

    /** A user property; what cannot be one, Backstop writes into one JSON object. */
    private static String header(MessageExt message, String name) {
        String plain = message.getUserProperty(name), more = message.getUserProperty("backstop-headers");
        if (plain != null || more == null) {
            return plain;
        }
        JSONObject others = JSON.parseObject(more);
        return others.getString(name);
    }

    private static byte[] sha256(byte[] content) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(content);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
