package org.example;

import io.eventuate.common.eventuate.local.BinLogEvent;
import io.eventuate.common.eventuate.local.BinlogFileOffset;
import io.eventuate.common.id.ApplicationIdGenerator;
import io.eventuate.common.jdbc.EventuateCommonJdbcOperations;
import io.eventuate.common.jdbc.EventuateJdbcOperationsUtils;
import io.eventuate.common.jdbc.EventuateJdbcStatementExecutor;
import io.eventuate.common.jdbc.EventuateSchema;
import io.eventuate.common.jdbc.OutboxPartitioningSpec;
import io.eventuate.common.jdbc.OutboxTableSuffix;
import io.eventuate.common.jdbc.sqldialect.EventuateSqlDialect;
import io.eventuate.common.jdbc.sqldialect.MySqlDialect;
import io.eventuate.common.jdbc.sqldialect.PostgresDialect;
import io.eventuate.common.spring.jdbc.EventuateSpringJdbcStatementExecutor;
import io.eventuate.common.spring.jdbc.EventuateSpringTransactionTemplate;
import io.eventuate.local.common.BinlogEntry;
import io.eventuate.local.common.BinlogEntryHandler;
import io.eventuate.local.common.BinlogEntryToEventConverter;
import io.eventuate.local.polling.ParallelPollingChannels;
import io.eventuate.local.polling.PollingDao;
import io.eventuate.local.polling.spec.PollingSpec;
import io.eventuate.tram.consumer.common.DecoratedMessageHandlerFactory;
import io.eventuate.tram.consumer.common.DuplicateDetectingMessageHandlerDecorator;
import io.eventuate.tram.consumer.common.MessageHandlerDecorator;
import io.eventuate.tram.consumer.jdbc.SqlTableBasedDuplicateMessageDetector;
import io.eventuate.tram.messaging.common.DefaultChannelMapping;
import io.eventuate.tram.messaging.common.Message;
import io.eventuate.tram.messaging.common.MessageImpl;
import io.eventuate.tram.messaging.common.MessageInterceptor;
import io.eventuate.tram.messaging.common.SubscriberIdAndMessage;
import io.eventuate.tram.messaging.producer.MessageBuilder;
import io.eventuate.tram.messaging.producer.common.MessageProducerImpl;
import io.eventuate.tram.messaging.producer.jdbc.MessageProducerJdbcImpl;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * Eventuate Tram's own producer, polling relay and consumer's duplicate detection, over the tables that its own SQL makes, driven
 * line by line.
 *
 * <p>Orders: {@code open NAME URL USER PASSWORD} (the schema that the URL names is there and empty), {@code place NAME} and
 * {@code roll-back NAME} (the id), {@code relay NAME} (the ids that one round handed to the broker), {@code receive NAME ID}
 * ({@code handled}, or nothing for a duplicate). Each is answered by one line: {@code done ...} or {@code failed ...}.
 */
public final class EventuateShop {
    private static final EventuateSchema SCHEMA = new EventuateSchema();
    private static final Map<String, EventuateShop> SHOPS = new HashMap<>();

    private final TransactionTemplate transactions;
    private final MessageProducerImpl producer;
    private final PollingDao relay;
    private final BinlogEntryHandler<?> outbox;
    private final DecoratedMessageHandlerFactory handlers;
    private final List<String> sent = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            try {
                answers.println(("done " + carryOut(order.split(" "))).trim());
            } catch (Throwable failed) {
                failed.printStackTrace();
                answers.println("failed " + failed);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String carryOut(String[] order) throws Exception {
        String name = order[1];
        switch (order[0]) {
            case "open":
                SHOPS.put(name, new EventuateShop(order[2], order[3], order[4]));
                return "";
            case "place":
                return SHOPS.get(name).place(false);
            case "roll-back":
                return SHOPS.get(name).place(true);
            case "relay":
                return SHOPS.get(name).relay();
            case "receive":
                return SHOPS.get(name).receive(order[2]);
            default:
                throw new IllegalArgumentException(order[0]);
        }
    }

    private EventuateShop(String url, String user, String password) throws Exception {
        DriverManagerDataSource database = new DriverManagerDataSource(url, user, password);
        boolean onPostgreSql = url.startsWith("jdbc:postgresql:");
        makeTables(database, onPostgreSql ? "postgresql" : "mysql");

        EventuateSqlDialect dialect = onPostgreSql ? new PostgresDialect() : new MySqlDialect();
        EventuateJdbcStatementExecutor statements =
                new EventuateSpringJdbcStatementExecutor(new JdbcTemplate(database));
        transactions = new TransactionTemplate(new DataSourceTransactionManager(database));
        EventuateCommonJdbcOperations operations = new EventuateCommonJdbcOperations(
                new EventuateJdbcOperationsUtils(dialect), statements, dialect, OutboxPartitioningSpec.DEFAULT);
        producer = new MessageProducerImpl(
                new MessageInterceptor[0],
                DefaultChannelMapping.builder().build(),
                new MessageProducerJdbcImpl(operations, new ApplicationIdGenerator(), SCHEMA));
        relay = new PollingDao(
                new SimpleMeterRegistry(),
                url,
                database,
                1000,
                1,
                1,
                1,
                "relay",
                dialect,
                1L,
                ParallelPollingChannels.make(new String[0]),
                OutboxPartitioningSpec.DEFAULT);
        outbox = relay.addBinlogEntryHandler(SCHEMA, "message", new ReadId(), this::send);
        List<MessageHandlerDecorator> decorators = new ArrayList<>(); // it is sorted in place
        decorators.add(new DuplicateDetectingMessageHandlerDecorator(new SqlTableBasedDuplicateMessageDetector(
                SCHEMA,
                dialect.getCurrentTimeInMillisecondsExpression(),
                statements,
                new EventuateSpringTransactionTemplate(transactions))));
        handlers = new DecoratedMessageHandlerFactory(decorators);
    }

    /** By the scripts that the library ships for this server. */
    private static void makeTables(DriverManagerDataSource database, String server) throws Exception {
        try (Connection connection = database.getConnection();
                Statement statement = connection.createStatement()) {
            String tables = read("flyway-templates/" + server + "/3.create-message-table.sql")
                    + ";"
                    + read("flyway/" + server + "/V2__tram_database" + (server.equals("mysql") ? "" : "_postgres") + ".sql");
            for (String one : tables.replace("${EVENTUATE_OUTBOX_SUFFIX}", "").split(";")) {
                if (!one.isBlank()) {
                    statement.execute(one);
                }
            }
        }
    }

    private static String read(String resource) throws Exception {
        try (InputStream found = EventuateShop.class.getClassLoader().getResourceAsStream(resource)) {
            return new String(found.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private String place(boolean rollBack) {
        Message message = MessageBuilder.withPayload("{\"order\":1}").build();
        transactions.executeWithoutResult(transaction -> {
            producer.send("orders", message);
            if (rollBack) {
                transaction.setRollbackOnly();
            }
        });
        return message.getId();
    }

    private String relay() {
        sent.clear();
        relay.processEvents(outbox, PollingSpec.ALL, new OutboxTableSuffix(null));
        return String.join(" ", sent);
    }

    private CompletableFuture<?> send(Sent message) {
        sent.add(message.id);
        return CompletableFuture.completedFuture(message.id);
    }

    private String receive(String id) {
        List<String> handled = new ArrayList<>();
        Message message = new MessageImpl("{}", new HashMap<>(Map.of(Message.ID, id)));
        handlers.decorate(received -> handled.add("handled"))
                .accept(new SubscriberIdAndMessage("billing-consumer", message));
        return String.join(" ", handled);
    }

    private static final class Sent implements BinLogEvent {
        private final String id;

        Sent(String id) {
            this.id = id;
        }

        @Override
        public Optional<BinlogFileOffset> getBinlogFileOffset() {
            return Optional.empty();
        }
    }

    private static final class ReadId implements BinlogEntryToEventConverter<Sent> {
        @Override
        public Optional<Sent> convert(BinlogEntry row, Integer partition) {
            return Optional.of(new Sent(row.getStringColumn("id")));
        }

        @Override
        public String getDestinationColumn() {
            return "destination";
        }
    }
}
