import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own Java client in the hands of a test: orders are lines of JSON on the input, answers and events lines of JSON on
 * the output, each after "> " (the other lines are the library's).
 *
 * An order is {"n": number, "do": name, ...}; its answer is {"n": number, "answer": ...} or {"n": number, "error": text}. Orders
 * run beside one another; who needs an order waits for the answer. Argument: the name servers. Environment: ROCKETMQ_ACCESS and
 * ROCKETMQ_SECRET, or nothing. The input's end is the end.
 */
public final class Peer {
    private static final PrintStream SAY = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    final String namesrv;
    private final Map<String, Consume> consumers = new ConcurrentHashMap<>();
    private final Produce produce = new Produce(this);
    private final Oracle oracle = new Oracle(this);

    private Peer(String namesrv) {
        this.namesrv = namesrv;
    }

    static void say(JSONObject line) {
        synchronized (SAY) {
            SAY.println("> " + JSON.toJSONString(line));
        }
    }

    /** A hook of its own for each client; null without a login. */
    static RPCHook login() {
        String access = System.getenv("ROCKETMQ_ACCESS");
        return access == null ? null
            : new AclClientRPCHook(new SessionCredentials(access, System.getenv("ROCKETMQ_SECRET")));
    }

    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer(arguments[0]);
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            JSONObject order = JSON.parseObject(line);
            workers.execute(() -> peer.answer(order));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JSONObject order) {
        JSONObject answer = new JSONObject();
        answer.put("n", order.get("n"));
        try {
            answer.put("answer", carryOut(order));
        } catch (Throwable failed) {
            java.io.StringWriter text = new java.io.StringWriter();
            failed.printStackTrace(new java.io.PrintWriter(text));
            answer.put("error", text.toString());
        }
        say(answer);
    }

    private Object carryOut(JSONObject order) throws Exception {
        switch (order.getString("do")) {
            case "send":
                return produce.send(order);
            case "consume":
                consumers.put(order.getString("name"), new Consume(this, order));
                return true;
            case "release":
                return consumers.get(order.getString("name")).release(order.getIntValue("messages"));
            case "heal":
                return consumers.get(order.getString("name")).heal();
            case "close":
                return consumers.remove(order.getString("name")).close();
            default:
                return oracle.answer(order);
        }
    }
}
