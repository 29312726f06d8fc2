import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ProcessQueueInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What RocketMQ's own tools say of the same server: the second opinion on everything that our adapter reads. */
final class Oracle {
    private final Peer peer;
    private DefaultMQAdminExt admin;
    private DefaultMQPullConsumer reader;

    Oracle(Peer peer) {
        this.peer = peer;
    }

    Object answer(JSONObject order) throws Exception {
        String topic = order.getString("topic"), group = order.getString("group");
        switch (order.getString("do")) {
            case "offsets":
                return offsets(topic);
            case "committed":
                return committed(group, topic);
            case "reset":
                admin().resetOffsetByQueueId(order.getString("broker"), group, topic, order.getIntValue("queue"), order.getLongValue("offset"));
                return true;
            case "reset_to_time":
                admin().resetOffsetByTimestamp(topic, group, order.getLongValue("time"), true);
                return true;
            case "read":
                return read(topic);
            case "view":
                return Shown.message(admin().viewMessage(topic, order.getString("id")));
            case "by_uniq_key":
                return byUniqueKey(topic, order.getString("id"));
            case "clients":
                return clients(group);
            case "locks":
                return locks(group, order.getString("client"));
            default:
                throw new IllegalArgumentException("no such order: " + order);
        }
    }

    void requestMode(String broker, String topic, String group, MessageRequestMode mode) throws Exception {
        admin().setMessageRequestMode(broker, topic, group, mode, 0, 5000);
        stop();
    }

    private synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(Peer.login(), 5000);
            admin.setNamesrvAddr(peer.namesrv);
            admin.setInstanceName("oracle" + System.nanoTime());
            admin.setVipChannelEnabled(false);
            admin.start();
        }
        return admin;
    }

    private synchronized void stop() {
        admin.shutdown();
        admin = null;
    }

    private JSONArray offsets(String topic) throws Exception {
        JSONArray answer = new JSONArray();
        for (Map.Entry<MessageQueue, TopicOffset> one : admin().examineTopicStats(topic).getOffsetTable().entrySet()) {
            JSONObject shown = Shown.queue(one.getKey());
            shown.put("first", one.getValue().getMinOffset());
            shown.put("next", one.getValue().getMaxOffset());
            answer.add(shown);
        }
        return answer;
    }

    private JSONArray committed(String group, String topic) throws Exception {
        JSONArray answer = new JSONArray();
        for (Map.Entry<MessageQueue, OffsetWrapper> one
                : admin().examineConsumeStats(group, topic).getOffsetTable().entrySet()) {
            JSONObject shown = Shown.queue(one.getKey());
            shown.put("committed", one.getValue().getConsumerOffset());
            shown.put("next", one.getValue().getBrokerOffset());
            shown.put("last", one.getValue().getLastTimestamp());
            answer.add(shown);
        }
        return answer;
    }

    private synchronized JSONArray read(String topic) throws Exception {
        if (reader == null) {
            reader = new DefaultMQPullConsumer("TOOLS_CONSUMER", Peer.login());
            reader.setNamesrvAddr(peer.namesrv);
            reader.setInstanceName("reader" + System.nanoTime());
            reader.setVipChannelEnabled(false);
            reader.start();
        }
        JSONArray answer = new JSONArray();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            long offset = reader.minOffset(queue), end = reader.maxOffset(queue);
            while (offset < end) {
                PullResult pulled = reader.pull(queue, "*", offset, 32);
                if (pulled.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : pulled.getMsgFoundList()) {
                        answer.add(Shown.message(message));
                    }
                }
                offset = pulled.getNextBeginOffset();
            }
        }
        return answer;
    }

    private JSONArray byUniqueKey(String topic, String key) throws Exception {
        JSONArray answer = new JSONArray();
        for (MessageExt message
                : admin().queryMessageByUniqKey("DefaultCluster", topic, key, 32, 0, Long.MAX_VALUE).getMessageList()) {
            answer.add(Shown.message(message));
        }
        return answer;
    }

    private JSONArray clients(String group) throws Exception {
        JSONArray answer = new JSONArray();
        for (Connection one : admin().examineConsumerConnectionInfo(group).getConnectionSet()) {
            JSONObject shown = new JSONObject();
            shown.put("client", one.getClientId());
            shown.put("language", one.getLanguage().name());
            answer.add(shown);
        }
        return answer;
    }

    private JSONArray locks(String group, String client) throws Exception {
        JSONArray answer = new JSONArray();
        for (Map.Entry<MessageQueue, ProcessQueueInfo> one
                : admin().getConsumerRunningInfo(group, client, false).getMqTable().entrySet()) {
            JSONObject shown = Shown.queue(one.getKey());
            shown.put("locked", one.getValue().isLocked());
            shown.put("last_lock", one.getValue().getLastLockTimestamp());
            answer.add(shown);
        }
        return answer;
    }
}
