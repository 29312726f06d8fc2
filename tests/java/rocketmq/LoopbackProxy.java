package org.apache.rocketmq.proxy;

import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.net.InetSocketAddress;
import java.util.concurrent.ThreadPoolExecutor;
import org.apache.rocketmq.common.utils.StartAndShutdown;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.proxy.grpc.GrpcServerBuilder;
import org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator;
import org.apache.rocketmq.proxy.grpc.v2.GrpcMessagingApplication;
import org.apache.rocketmq.proxy.processor.MessagingProcessor;

/**
 * RocketMQ's broker with its gRPC proxy in one process, on the loopback alone: the steps of ProxyStartup, which knows no bindAddress,
 * and in whose package they can be called.
 */
public final class LoopbackProxy {
    public static void main(String[] arguments) throws Exception {
        ProxyStartup.initConfiguration(ProxyStartup.parseCommandLineArgument(arguments));
        ProxyStartup.initThreadPoolMonitor();
        ThreadPoolExecutor executor = ProxyStartup.createServerExecutor();
        MessagingProcessor processor = ProxyStartup.createMessagingProcessor();
        GrpcMessagingApplication application = GrpcMessagingApplication.create(processor);
        int port = ConfigurationManager.getProxyConfig().getGrpcServerPort();
        var all = ProxyStartup.class.getDeclaredField("PROXY_START_AND_SHUTDOWN");
        all.setAccessible(true);
        ((StartAndShutdown) all.get(null)).start();
        application.start();
        new Loopback(executor, port).addService(application).configInterceptor().build().start();
    }

    private static final class Loopback extends GrpcServerBuilder {
        Loopback(ThreadPoolExecutor executor, int port) {
            super(executor, port);
            serverBuilder = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port))
                .protocolNegotiator(new ProxyAndTlsProtocolNegotiator())
                .maxInboundMessageSize(ConfigurationManager.getProxyConfig().getGrpcMaxInboundMessageSize());
            serverBuilder.executor(executor);
        }
    }
}
