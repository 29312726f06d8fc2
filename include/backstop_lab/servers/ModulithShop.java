package org.example;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.Environment;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.modulith.events.ApplicationModuleListener;
import org.springframework.modulith.events.EventExternalizationConfiguration;
import org.springframework.modulith.events.Externalized;
import org.springframework.modulith.events.IncompleteEventPublications;
import org.springframework.modulith.events.ResubmissionOptions;
import org.springframework.modulith.events.support.DelegatingEventExternalizer;
import org.springframework.modulith.events.support.EventExternalizationTransport;
import org.springframework.modulith.events.support.EventExternalizerModuleListener;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * Spring Modulith's own event registry, one application a database, driven line by line: what it makes and writes is the library's.
 *
 * <p>Orders: {@code open NAME URL USER PASSWORD MODE TRANSPORT VERSION} (of the tables: 1 or 2),
 * {@code place NAME ID}, {@code roll-back NAME ID}, {@code answer NAME ID} (the broker has the message), {@code receive NAME ID}, {@code resubmit NAME}, {@code sent NAME} (the ids
 * that were handed to the broker since the last question). Each is answered by one line: {@code done ...} or {@code failed ...}.
 */
public final class ModulithShop {
    private static final int WAIT_SECONDS = 120;
    private static final String LEGACY = "spring.modulith.events.jdbc.use-legacy-structure";
    private static final Map<String, ConfigurableApplicationContext> SHOPS = new HashMap<>();

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
        Runtime.getRuntime().halt(0); // what is under way stays so, as when an application dies
    }

    private static String carryOut(String[] order) throws Exception {
        String name = order[1];
        if (order[0].equals("open")) {
            SHOPS.put(name, open(order[2], order[3], order[4], order[5], order[6], order[7]));
            return "";
        }
        ConfigurableApplicationContext shop = SHOPS.get(name);
        Broker broker = shop.getBean(Broker.class);
        switch (order[0]) {
            case "place":
                publish(shop, new OrderPlaced(order[2]), false);
                return "";
            case "roll-back":
                publish(shop, new OrderPlaced(order[2]), true);
                return "";
            case "answer":
                broker.answer(order[2]);
                return "";
            case "receive":
                publish(shop, new OrderReceived(order[2]), false);
                return "";
            case "resubmit":
                resubmit(shop);
                return "";
            case "sent":
                return broker.sent();
            default:
                throw new IllegalArgumentException(order[0]);
        }
    }

    private static ConfigurableApplicationContext open(
            String url, String user, String password, String mode, String transport, String version) {
        return new SpringApplicationBuilder(Application.class)
                .web(WebApplicationType.NONE)
                .bannerMode(org.springframework.boot.Banner.Mode.OFF)
                .logStartupInfo(false)
                .registerShutdownHook(false)
                .properties(
                        "shop.url=" + url,
                        "shop.user=" + user,
                        "shop.password=" + password,
                        "shop.transport=" + transport,
                        "spring.modulith.events.completion-mode=" + mode,
                        LEGACY + "=" + version.equals("1"),
                        "spring.modulith.events.jdbc.schema-initialization.enabled=true")
                .run();
    }

    /** With options, nothing of version 1 of the tables is ever submitted again: these ask for a status, which it lacks. */
    private static void resubmit(ConfigurableApplicationContext shop) {
        IncompleteEventPublications incomplete = shop.getBean(IncompleteEventPublications.class);
        if (shop.getEnvironment().getRequiredProperty(LEGACY, Boolean.class)) {
            incomplete.resubmitIncompletePublications(publication -> true);
        } else {
            incomplete.resubmitIncompletePublications(ResubmissionOptions.defaults());
        }
    }

    private static void publish(ConfigurableApplicationContext shop, Object event, boolean rollBack) {
        shop.getBean(TransactionTemplate.class).executeWithoutResult(transaction -> {
            shop.publishEvent(event);
            if (rollBack) {
                transaction.setRollbackOnly();
            }
        });
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Application {
        @Bean
        DataSource dataSource(Environment settings) {
            return new DriverManagerDataSource(
                    settings.getRequiredProperty("shop.url"),
                    settings.getRequiredProperty("shop.user"),
                    settings.getRequiredProperty("shop.password"));
        }

        @Bean
        EventExternalizationConfiguration externalized() {
            return EventExternalizationConfiguration.externalizing()
                    .select(EventExternalizationConfiguration.annotatedAsExternalized())
                    .build();
        }

        @Bean
        Broker broker() {
            return new Broker();
        }

        @Bean
        Billing billing() {
            return new Billing();
        }

        /** As the broker modules of version 2.1 declare it. */
        @Bean
        @ConditionalOnProperty(name = "shop.transport", havingValue = "module-listener")
        EventExternalizerModuleListener listener(EventExternalizationConfiguration externalized, Broker broker) {
            return new EventExternalizerModuleListener(externalized, broker);
        }

        /** As the broker modules declare it up to version 2.0. */
        @Bean
        @ConditionalOnProperty(name = "shop.transport", havingValue = "delegating")
        @SuppressWarnings("removal")
        DelegatingEventExternalizer externalizer(EventExternalizationConfiguration externalized, Broker broker) {
            return new DelegatingEventExternalizer(externalized, (target, event) -> broker.externalize(event, target));
        }
    }

    /** Takes every message and answers when it is told to. */
    static class Broker implements EventExternalizationTransport {
        private final Map<String, CompletableFuture<Object>> open = new ConcurrentHashMap<>();
        private final BlockingQueue<String> sent = new LinkedBlockingQueue<>();

        @Override
        public CompletableFuture<?> externalize(Object event, org.springframework.modulith.events.RoutingTarget target) {
            String id = ((OrderPlaced) event).orderId;
            CompletableFuture<Object> answer = new CompletableFuture<>();
            open.put(id, answer);
            sent.add(id);
            return answer;
        }

        String sent() throws InterruptedException {
            StringBuilder ids = new StringBuilder();
            for (String id = sent.poll(); id != null; id = sent.poll()) {
                ids.append(id).append(' ');
            }
            return ids.toString();
        }

        void answer(String id) throws InterruptedException {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
            CompletableFuture<Object> answer;
            while ((answer = open.remove(id)) == null) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(id + " was not handed to the broker");
                }
                Thread.sleep(5);
            }
            answer.complete(id);
        }
    }
}

class Billing {
    @ApplicationModuleListener
    void on(OrderReceived received) {}
}

@Externalized("orders")
class OrderPlaced {
    public String orderId;

    OrderPlaced() {}

    OrderPlaced(String orderId) {
        this.orderId = orderId;
    }
}

class OrderReceived {
    public String orderId;

    OrderReceived() {}

    OrderReceived(String orderId) {
        this.orderId = orderId;
    }
}
