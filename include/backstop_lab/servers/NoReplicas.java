import java.nio.channels.SocketChannel;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAConnection;
import org.apache.rocketmq.store.ha.DefaultHAService;
import org.apache.rocketmq.store.ha.HAConnection;

/** A broker without replicas does not listen for them: the port for them is the only one that knows no bindAddress. */
public final class NoReplicas extends DefaultHAService {
    @Override
    public void init(DefaultMessageStore store) throws java.io.IOException {
        super.init(store);
        acceptSocketService = new AcceptSocketService(store.getMessageStoreConfig()) {
            @Override
            public void beginAccept() {}

            @Override
            public void run() {}

            @Override
            public void shutdown(boolean interrupt) {}

            @Override
            protected HAConnection createConnection(SocketChannel channel) throws java.io.IOException {
                return new DefaultHAConnection(NoReplicas.this, channel);
            }

            @Override
            public String getServiceName() {
                return "NoReplicas";
            }
        };
    }
}
