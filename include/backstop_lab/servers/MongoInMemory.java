import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.ServerVersion;
import de.bwaldvogel.mongo.backend.Utils;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.bson.ObjectId;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.channel.Channel;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.function.Supplier;

/**
 * MongoDB's protocol over documents in memory. As MongoDB does, it says which of its lives it is in; and it plays what a test asks for
 * (a secondary, a router, the primary of another election): `playAnswers: {command: {field: value}}` is laid over its answers.
 */
public final class MongoInMemory extends MemoryBackend {
    /** MongoDB 4.4's, the oldest that today's driver speaks to. */
    private static final int WIRE_VERSION = 9;

    private final ObjectId life = new ObjectId();
    private final Map<Object, ObjectId> collections = new IdentityHashMap<>();
    private volatile Document played = new Document();

    @Override
    public Document handleCommand(Channel channel, String database, String command, Document query) {
        return played(command, query, () -> super.handleCommand(channel, database, command, query));
    }

    @Override
    public Document handleMessage(MongoMessage message) {
        Document query = message.getDocument();
        String command = query.keySet().iterator().next();
        Document answer = played(command, query, () -> super.handleMessage(message));
        if (command.equals("listCollections") && answer.get("cursor") != null) {
            name(message.getDatabaseName(), (Document) answer.get("cursor"));
        }
        return answer;
    }

    /** As MongoDB does, says which collection each is: another one of that name is another. */
    private synchronized void name(String database, Document cursor) {
        for (Object found : (Iterable<?>) cursor.get("firstBatch")) {
            Document described = (Document) found;
            String name = (String) described.get("name");
            Object collection = resolveDatabase(database).resolveCollection(name, false);
            Object id = collections.computeIfAbsent(collection, any -> new ObjectId());
            ((Document) described.get("info")).put("uuid", id);
        }
    }

    private Document played(String command, Document query, Supplier<Document> ask) {
        if (command.equals("playAnswers")) {
            played = (Document) query.get(command);
            Document answer = new Document();
            Utils.markOkay(answer);
            return answer;
        }
        boolean hello = command.equalsIgnoreCase("hello") || command.equalsIgnoreCase("ismaster");
        Document answer = hello ? super.handleCommand(null, "admin", "ismaster", query) : ask.get();
        if (hello) {
            answer.put("isWritablePrimary", Boolean.TRUE);
            answer.put("maxWireVersion", Integer.valueOf(WIRE_VERSION));
            answer.put("topologyVersion", new Document("processId", life).append("counter", 0L));
        }
        Object over = played.get(hello ? "hello" : command);
        if (over != null) {
            answer.putAll((Document) over);
        }
        return answer;
    }

    public static void main(String[] arguments) {
        MongoInMemory backend = new MongoInMemory();
        backend.version(ServerVersion.MONGO_5_0);
        new MongoServer(backend).bind(arguments[0], Integer.parseInt(arguments[1]));
    }
}
