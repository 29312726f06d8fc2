"""Texts whose cause is known: templates in the formats of public logs and of application errors, with slots of every usual kind.

`HELD_OUT` are formats that neither the patterns nor the list of words were made on; the two halves share no format. Keep it so:
a format that somebody looked at to mend the patterns goes over to `DEV`. Everything is drawn from one seed.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence

DEV: Mapping[str, Sequence[str]] = {
    "hdfs": (
        "Receiving block {blk} src: /{ipport} dest: /{ipport}",
        "PacketResponder {int} for block {blk} terminating",
        "BLOCK* NameSystem.addStoredBlock: blockMap updated: {ipport} is added to {blk} size {int}",
        "Received block {blk} of size {int} from /{ip}",
        "Got exception while serving {blk} to /{ip}:",
        "Deleting block {blk} file {path}",
        "BLOCK* NameSystem.delete: {blk} is added to invalidSet of {ipport}",
        "Exception in receiveBlock for block {blk} java.io.IOException: Connection reset by peer",
        "writeBlock {blk} received exception java.io.EOFException",
        "Verification succeeded for {blk}",
    ),
    "spark": (
        "Finished task {float} in stage {float} (TID {int}). {int} bytes result sent to driver",
        "Lost task {float} in stage {float} (TID {int}, {host}): java.io.FileNotFoundException: {path} (No such file or"
        " directory)",
        "Block {word}_{int}_{int} stored as values in memory (estimated size {size}, free {size})",
        "Removed broadcast_{int}_piece{int} on {ipport} in memory (size: {size}, free: {size})",
        "Asked to send map output locations for shuffle {int} to {ipport}",
        "Executor lost: {int} (epoch {int})",
        "Removing executor {int} with no recent heartbeats: {int} ms exceeds timeout {int} ms",
        "Changing view acls to: {user}",
    ),
    "zookeeper": (
        "Received connection request /{ipport}",
        "Connection broken for id {int}, my id = {int}, error =",
        "Client attempting to establish new session at /{ipport}",
        "Established session {hex} with negotiated timeout {int} for client /{ipport}",
        "Expiring session {hex}, timeout of {int}ms exceeded",
        "Cannot open channel to {int} at election address {host}/{ipport}",
        "Interrupting SendWorker",
        "Closed socket connection for client /{ipport} which had sessionid {hex}",
    ),
    "linux": (
        "session opened for user {user} by (uid={int})",
        "session closed for user {user}",
        "authentication failure; logname= uid={int} euid={int} tty=NODEVssh ruser= rhost={host}  user={user}",
        "check pass; user unknown",
        "Out of Memory: Killed process {int} ({word}).",
        "connection from {ip} ({host}) at {time}",
        "ALERT exited abnormally with [{int}]",
        "{word} startup succeeded",
        "CPU {int}: Intel Pentium III (Coppermine) stepping {int}",
        "audit({float}:{int}): initialized",
    ),
    "apache": (
        "jk2_init() Found child {int} in scoreboard slot {int}",
        "workerEnv.init() ok {path}",
        "mod_jk child workerEnv in error state {int}",
        "[client {ip}] Directory index forbidden by rule: {path}",
        "[client {ip}] File does not exist: {path}",
        "Can't find child {int} in scoreboard",
    ),
    "windows": (
        "Loaded Servicing Stack v{version} with Core: {winpath}",
        "Warning: Unrecognized packageExtended attribute.",
        "Failed to internally open package. [HRESULT = {hex} - CBS_E_INVALID_PACKAGE]",
        "SQM: Failed to start upload with file pattern: {winpath}, flags: {hex} [HRESULT = {hex} - E_FAIL]",
        "Read out cached package applicability for package: {word}~{hexid}~amd64~~{version}, ApplicableState: {int},"
        " CurrentState:{int}",
        "Session: {int}_{int} initialized by client WindowsUpdateAgent.",
    ),
    "python": (
        "KeyError: {qstr}",
        "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint {dqstr}\n"
        "DETAIL:  Key ({word}_id)=({int}) already exists.",
        "psycopg2.OperationalError: connection to server at {dqstr} ({ip}), port {int} failed: Connection refused\n"
        "\tIs the server running on that host and accepting TCP/IP connections?",
        "psycopg2.errors.DeadlockDetected: deadlock detected\nDETAIL:  Process {int} waits for ShareLock on transaction {int};"
        " blocked by process {int}.",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: {url}",
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: {url}",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='{host}', port=443): Read timed out. (read timeout={float})",
        "json.decoder.JSONDecodeError: Expecting value: line {int} column {int} (char {int})",
        "pydantic_core._pydantic_core.ValidationError: {int} validation errors for Order",
        "ValueError: invalid literal for int() with base 10: {qstr}",
        "ValueError: could not convert string to float: {qstr}",
        'Traceback (most recent call last):\n  File "{path}", line {int}, in handle\n    charge(order)\n  File "{path}",'
        " line {int}, in charge\n    raise Declined(order)\nbilling.Declined: card of {email} was declined for {float} EUR",
        'Traceback (most recent call last):\n  File "{path}", line {int}, in handle\n    total = price * amount\n'
        "TypeError: can't multiply sequence by non-int of type {qstr}",
        'Traceback (most recent call last):\n  File "{path}", line {int}, in reserve\n    stock[sku] -= 1\nKeyError: {qstr}',
    ),
    "kafka": (
        "org.apache.kafka.common.errors.TimeoutException: Topic {topic} not present in metadata after {int} ms.",
        "org.apache.kafka.common.errors.RecordTooLargeException: The message is {int} bytes when serialized which is larger than"
        " {int}, which is the value of the max.request.size configuration.",
        "org.apache.kafka.common.errors.SerializationException: Error deserializing key/value for partition {topic}-{int} at"
        " offset {int}. If needed, please seek past the record to continue consumption.",
        "[Consumer clientId=consumer-{word}-{int}, groupId={word}] Offset commit failed on partition {topic}-{int} at offset"
        " {int}: The coordinator is not aware of this member.",
        "org.apache.kafka.clients.consumer.CommitFailedException: Offset commit cannot be completed since the consumer is not"
        " part of an active group for auto partition assignment",
        "Connection to node {neg} ({host}/{ipport}) could not be established. Node may not be available.",
    ),
    "activemq": (
        "java.lang.Throwable: Suppressing duplicate delivery on connection, consumer ID:{amq}",
        "duplicate from store for queue://{topic}",
        "duplicate paged in from cursor for queue://{topic}",
        "java.lang.Throwable: Delivery[{int}] exceeds redelivery policy limit:RedeliveryPolicy {destination = queue://{topic},"
        " collisionAvoidanceFactor = 0.15, maximumRedeliveries = {int}}, cause:java.lang.IllegalStateException: no rate for"
        " {int}",
        "java.lang.Throwable: Delivery[{int}] exceeds redelivery policy limit:RedeliveryPolicy {destination = queue://{topic},"
        " collisionAvoidanceFactor = 0.15, maximumRedeliveries = {int}}, cause:null",
        "java.lang.Throwable: Message Expired. Expiration:{int}",
    ),
    # These were held out at first, and were looked at then.
    "hadoop": (
        "Created MRAppMaster for application appattempt_{int}_{int}_{int}",
        "TaskAttempt: [attempt_{int}_{int}_m_{int}_0] using containerId: [container_{int}_{int}_01_{int} on NM: [{host}:{int}]",
        "Progress of TaskAttempt attempt_{int}_{int}_m_{int}_0 is : {float}",
        "attempt_{int}_{int}_m_{int}_0 TaskAttempt Transitioned from {astate} to {bstate}",
        "Error in contacting RM.",
        "Address change detected. Old: {host}/{ipport} New: {host}:{int}",
        "Retrying connect to server: {host}/{ipport}. Already tried {int} time(s); retry policy is"
        " RetryUpToMaximumCountWithFixedSleep(maxRetries={int}, sleepTime={int} MILLISECONDS)",
        "Failed to renew lease for [DFSClient_NONMAPREDUCE_{int}_1] for {int} seconds.  Will retry shortly ...",
        "Diagnostics report from attempt_{int}_{int}_m_{int}_0: Error: java.net.NoRouteToHostException: No Route to Host from"
        "  {host}/{ip} to {host}:{int} failed on socket timeout exception",
        "Registering class {class} for class {class}",
    ),
    "openstack": (
        "[instance: {uuid}] VM {vmstate} (Lifecycle Event)",
        "[instance: {uuid}] Took {float} seconds to build instance.",
        "[instance: {uuid}] Total memory: {int} MB, used: {float} MB",
        "[instance: {uuid}] Claim successful",
        "[instance: {uuid}] During sync_power_state the instance has a pending task (spawning). Skip.",
        "[instance: {uuid}] Instance destroyed successfully.",
        '{ip},{ip} "GET {path} HTTP/1.1" status: {status} len: {int} time: {float}',
        "While synchronizing instance power states, found {int} instances in the database and {int} instances on the hypervisor.",
        "Unknown base file: {path}",
        "Removable base files: {path} {path}",
        "HTTP exception thrown: No instances found for any event",
    ),
    "bgl": (
        "instruction cache parity error corrected",
        "{int} double-hummer alignment exceptions",
        "generating core.{int}",
        "ciod: Error loading {path}: invalid or missing program image, No such file or directory",
        "ciod: failed to read message prefix on control stream (CioStream socket to {ipport}",
        "data TLB error interrupt",
        "CE sym {int}, at {hex}, mask {hex}",
        "rts: kernel terminated for reason {int}",
        "{int} ddr errors(s) detected and corrected on rank {int}, symbol {int}, bit {int}",
        "ciod: LOGIN chdir({path}) failed: Permission denied",
        "MidplaneSwitchController performing bit sparing on {bglnode} bit {int}",
        "Lustre mount FAILED : {bglio} : block_id : location",
    ),
    "hpc": (
        "Component State Change: Component \\042alt0\\042 is in the {hpcstate} state (HWID={int})",
        "PSU status ( on on )",
        "Temperature ({int}) exceeds warning threshold",
        "Link error on broadcast tree Interconnect-0T00:{int}:{int}",
        "ServerFileSystem: An ServerFileSystem domain panic has occurred on {word}{int}_domain",
        "Fan speeds ( {int} {int} {int} {int} {int} {int} )",
        "ClusterFileSystem: There is no server for ServerFilesystem domain {word}{int}_domain",
        "psu failure\\ ambient={int}",
        "boot (command {int}) Error: Not bootable (1 of {int})",
    ),
    "thunderbird": (
        "({user}) CMD (run-parts {path})",
        "Did not receive identification string from {ip}",
        "{host}: synchronized to {ip}, stratum {int}",
        "kernel time sync disabled {hex4}",
        "DHCPDISCOVER from {mac} via eth{int}: network A_net: no free leases",
        "[KSERVER_CRIT] Local Catastrophic Error {hex} on port {int}",
        "message-id=<{email}>",
        "to={email}, ctladdr={user} ({int}/{int}), delay={clock}, xdelay={clock}, mailer=relay, dsn=4.0.0, stat=Deferred",
        "ib_sm_sweep.c:{int}",
        "Losing some ticks... checking if CPU frequency changed.",
    ),
    "openssh": (
        "Failed password for {user} from {ip} port {int} ssh2",
        "Failed password for invalid user {user} from {ip} port {int} ssh2",
        "Accepted password for {user} from {ip} port {int} ssh2",
        "Invalid user {user} from {ip}",
        "input_userauth_request: invalid user {user} [preauth]",
        "reverse mapping checking getaddrinfo for {host} [{ip}] failed - POSSIBLE BREAK-IN ATTEMPT!",
        "Received disconnect from {ip}: {int}: Bye Bye [preauth]",
        "error: Received disconnect from {ip}: {int}: com.jcraft.jsch.JSchException: Auth fail [preauth]",
        "PAM {int} more authentication failures; logname= uid={int} euid={int} tty=ssh ruser= rhost={ip}  user={user}",
        "fatal: Write failed: Connection reset by peer [preauth]",
        "Too many authentication failures for {user} [preauth]",
    ),
    "proxifier": (
        "proxy.{host}:{int} open through proxy proxy.{host}:{int} HTTPS",
        "{host}:{int} close, {int} bytes sent, {int} bytes ({float} KB) received, lifetime {clock}",
        "proxy.{host}:{int} error : Could not connect through proxy proxy.{host}:{int} - Proxy server cannot establish a"
        " connection"
        " with the target, status code 503",
        "{host}:{int} open directly",
    ),
    "android": (
        'acquire lock={int}, flags={hex}, tag="{dotted}", name={dotted}, ws=null, uid={int}, pid={int}',
        'release:lock={int}, flg={hex}, tag="{dotted}", name={dotted}", ws=null, uid={int}, pid={int}',
        "Skipping AppWindowToken{{hexid} token=Token{{hexid} ActivityRecord{{hexid} u0 {dotted}/.Main t{int}}}} -- going to hide",
        "setSystemUiVisibility vis={int} mask={int} oldVal={int} newVal={int} diff={int} fullscreenStackVis={int}",
        "Application token not found",
        "ready=true,policy={int},wakefulness={int},wksummary={hex},uasummary={hex},bootcompleted=true",
        "getRunningAppProcesses: caller {int} does not hold REAL_GET_TASKS; limiting output",
        "Input event dispatching timed out sending to {dotted}/{dotted}.Activity. Waited {float}ms",
    ),
    "healthapp": (
        "onStandStepChanged {int}",
        "getTodayTotalDetailSteps = {int}##{int}##{int}##{int}##{int}##{int}",
        "calculateCaloriesWithCache totalCalories={int}",
        "REPORT : {int} {int} {int} {int}",
        "flush sensor data",
        "saveHealthDetailData() deviceID is empty, type={int}, startTime={int}, endTime={int}",
    ),
    "mac": (
        "ARPT: {float}: wl0: wl_update_tcpkeep_seq: Original Seq: {int}, Ack: {int}, Win size: {int}",
        "Thermal pressure state: {int} Memory pressure state: {int}",
        "Unexpected payload found for message {int}, dataLen {int}",
        "Sandbox: {word}({int}) deny({int}) mach-lookup {dotted}",
        "AirPort: Link Down on awdl0. Reason {int} (Unspecified).",
        "Bluetooth -- LE is supported - Disable LE meta event",
        "Failed to bootstrap path: path = {path}, error = {int}: Could not find specified service",
        "en0::IO80211Interface::postMessage bssid changed",
        "NETWORK: requery, {int}, {int}, {int}, {int}, {int}, {int}, {int}, {int}",
    ),
    "jdbc": (
        "org.postgresql.util.PSQLException: Connection to {host}:{int} refused. Check that the hostname and port are correct and"
        " that the postmaster is accepting TCP/IP connections.",
        "org.postgresql.util.PSQLException: ERROR: deadlock detected\n  Detail: Process {int} waits for ShareLock on transaction"
        " {int}; blocked by process {int}.",
        "org.postgresql.util.PSQLException: ERROR: relation {dqstr} does not exist\n  Position: {int}",
        "org.postgresql.util.PSQLException: ERROR: value too long for type character varying({int})",
        "java.sql.SQLTransientConnectionException: HikariPool-{int} - Connection is not available, request timed out after"
        " {int}ms (total={int}, active={int}, idle={int}, waiting={int})",
        "java.sql.SQLIntegrityConstraintViolationException: Duplicate entry {qstr} for key {qstr}",
        "java.sql.SQLSyntaxErrorException: ORA-00942: table or view does not exist",
        "java.sql.SQLException: ORA-01400: cannot insert NULL into ({dqstr}.{dqstr}.{dqstr})",
        "com.mysql.cj.jdbc.exceptions.CommunicationsException: Communications link failure\n\nThe last packet successfully"
        " received"
        " from the server was {int} milliseconds ago. The last packet sent successfully to the server was {int} milliseconds"
        " ago.",
        "com.mysql.cj.jdbc.exceptions.MySQLTransactionRollbackException: Lock wait timeout exceeded; try restarting transaction",
    ),
    "java": (
        'java.lang.NullPointerException: Cannot invoke "{class}.getAmount()" because "order.line({int})" is null\n'
        "\tat com.acme.billing.Invoice.total(Invoice.java:{int})\n\tat com.acme.billing.Handler.onMessage(Handler.java:{int})\n"
        "\tat jdk.internal.reflect.GeneratedMethodAccessor{int}.invoke(Unknown Source)\n\t... {int} more",
        "java.lang.NullPointerException\n\tat com.acme.shipping.Label.print(Label.java:{int})\n"
        "\tat com.acme.shipping.Handler.onMessage(Handler.java:{int})",
        "org.springframework.messaging.MessageHandlingException: error occurred in message handler [{class}@{hexid}]; nested"
        " exception is java.lang.IllegalStateException: No exchange rate for {int}\n"
        "\tat org.springframework.integration.Handler.handle(Handler.java:{int})\n"
        "Caused by: java.lang.IllegalStateException: No exchange rate for {int}\n\tat com.acme.fx.Rates.rate(Rates.java:{int})",
        "com.fasterxml.jackson.databind.exc.InvalidFormatException: Cannot deserialize value of type `java.time.LocalDate` from"
        " String {dqstr}: Failed to deserialize java.time.LocalDate\n at [Source: (String){dqstr}; line: {int}, column: {int}]",
        "java.net.SocketTimeoutException: Read timed out",
        "java.net.ConnectException: Connection refused (Connection refused)",
        "java.lang.OutOfMemoryError: Java heap space",
        "java.lang.IllegalArgumentException: Unknown customer {uuid} in tenant {word}",
        "java.util.concurrent.TimeoutException: Did not observe any item or terminal signal within {int}ms in 'flatMap'",
        "io.grpc.StatusRuntimeException: UNAVAILABLE: io exception: Channel Pipeline: [{list}]",
        "io.grpc.StatusRuntimeException: DEADLINE_EXCEEDED: deadline exceeded after {float}s. [remote_addr={host}/{ipport}]",
        "io.grpc.StatusRuntimeException: RESOURCE_EXHAUSTED: gRPC message exceeds maximum size {int}: {int}",
    ),
    "go_node_net": (
        "dial tcp {ipport}: connect: connection refused",
        "dial tcp: lookup {host} on {ipport}: no such host",
        "panic: runtime error: index out of range [{int}] with length {int}\n\ngoroutine {int} [running]:\nmain.(*Worker).handle"
        "(0xc000{hexid})\n\t/src/worker.go:{int} +0x1d",
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers): Get {dqstr}",
        "TypeError: Cannot read properties of undefined (reading {qstr})\n    at Object.handle ({path}:{int}:{int})\n"
        "    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)",
        "Error: connect ECONNREFUSED {ipport}",
        "Error: getaddrinfo ENOTFOUND {host}",
        "UnhandledPromiseRejection: order {uuid} of {email} has no items",
        "System.InvalidOperationException: Sequence contains no elements\n   at System.Linq.ThrowHelper.ThrowNoElements()\n"
        "   at Shop.Orders.Handler.First(Int32 id) in {winpath}:line {int}",
        "System.Net.Http.HttpRequestException: Response status code does not indicate success: 429 (Too Many Requests).",
        "upstream request to {url} failed: HTTP 502 after {dur}",
        "upstream request to {url} failed: HTTP 400 after {dur}",
        "order {int} rejected: customer {word} has a negative balance of {neg}",
        "order {int} rejected: currency {dqstr} is not supported",
        "payload of {size} received at {time} from {thread} does not match schema {version}",
        "task {word}-{int} for {user} failed after {dur}: quota of {size} exceeded at {time}",
        "unable to reserve {int} pieces of {dqstr}: only {int} left in warehouse {word}",
        "missing fields: {list}",
    ),
    # Each of these has a twin that differs in what it says alone: they were looked at when twins fell into one cause.
    "logfmt": (
        'level=error ts={int} caller=pay.go:{int} msg="card was declined" order={uuid} attempt={int}',
        'level=error ts={int} caller=pay.go:{int} msg="account is closed" order={uuid} attempt={int}',
        'level=error msg="no such account" account={int} err="dial tcp {ipport}: connect: connection refused"',
        'level=error msg="no such account" account={int} err="context deadline exceeded after {dur}"',
        'level=warn msg="{int} retries are used up" topic={topic} reason="queue full"',
        'level=warn msg="{int} retries are used up" topic={topic} reason="message too large"',
        "charge of {uuid} failed: error_code=51 after {dur}",
        "charge of {uuid} failed: error_code=14 after {dur}",
    ),
    "quoted": (
        "Task {word}.tasks.pay[{uuid}] raised unexpected: RuntimeError('card was declined')",
        "Task {word}.tasks.pay[{uuid}] raised unexpected: RuntimeError('issuer is unreachable')",
        "gave up on {uuid}: {'error': 'INVALID_IBAN', 'order': {int}}",
        "gave up on {uuid}: {'error': 'NO_FUNDS', 'order': {int}}",
        '{"outcome": "declined", "order": {int}}',
        '{"outcome": "unreachable", "order": {int}}',
        "upstream answered 422 to {uuid}",
        "upstream answered 503 to {uuid}",
        "Error 1062 (23000): statement {int} of {uuid} failed",
        "Error 1205 (HY000): statement {int} of {uuid} failed",
        "worker {word} ended with exit code 137 after {dur}",
        "worker {word} ended with exit code 1 after {dur}",
    ),
    # Held out at first.
    "json_lines": (
        '{"level":"error","ts":{float},"msg":"lookup failed","order":"{uuid}","err":"no rows in result set"}',
        '{"level":"error","ts":{float},"msg":"lookup failed","order":"{uuid}","err":"too many clients already"}',
        '{"level":"error","ts":{float},"msg":"lookup failed","order":"{uuid}","code":"51"}',
        '{"level":"error","ts":{float},"msg":"lookup failed","order":"{uuid}","code":"14"}',
        '{"order":"{uuid}","errors":["no items","no address"]}',
        '{"order":"{uuid}","errors":["no currency"]}',
    ),
}

HELD_OUT: Mapping[str, Sequence[str]] = {
    "nginx": (
        "{int}#{int}: *{int} upstream timed out (110: Connection timed out) while reading response header from upstream,"
        " client: {ip},"
        ' server: {host}, request: "GET {path} HTTP/1.1", upstream: "{url}", host: {dqstr}',
        "{int}#{int}: *{int} open() {dqstr} failed (2: No such file or directory), client: {ip}, server: {host}",
        "{int}#{int}: *{int} connect() failed (111: Connection refused) while connecting to upstream, client: {ip}",
        "{int}#{int}: *{int} client intended to send too large body: {int} bytes",
        "{int} worker_connections are not enough while connecting to upstream",
    ),
    "postgres_server": (
        "checkpoint complete: wrote {int} buffers ({float}%); 0 WAL file(s) added, {int} removed, {int} recycled;"
        " write={float} s,"
        " sync={float} s, total={float} s",
        "duration: {float} ms  statement: SELECT * FROM {word} WHERE id = {int}",
        'automatic vacuum of table "{word}.public.{word}": index scans: {int}',
        "canceling statement due to lock timeout",
        "could not receive data from client: Connection reset by peer",
        "invalid input syntax for type uuid: {dqstr}",
        "terminating connection because of crash of another server process",
        "role {dqstr} is not permitted to log in",
    ),
    "mysql_server": (
        "[Warning] [MY-{int}] [Server] Aborted connection {int} to db: {qstr} user: {qstr} host: {qstr} (Got timeout reading"
        " communication"
        " packets).",
        "[ERROR] [MY-013183] [InnoDB] Assertion failure: {file}:{int}:{word}_{int} thread {int}",
        "Access denied for user '{user}'@'{host}' (using password: YES)",
        "Table '{word}.{word}_{int}' doesn't exist",
        "Slave I/O thread: error reconnecting to master '{user}@{host}:{int}' - retry-time: {int} retries: {int}",
    ),
    "redis_server": (
        "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
        "Client id={int} addr={ipport} fd={int} name= age={int} idle={int} scheduled to be closed ASAP for overcoming of"
        " output buffer"
        " limits.",
        "MOVED {int} {ipport}",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "Background saving terminated by signal {int}",
        "Error condition on socket for SYNC: Connection refused",
    ),
    "kubernetes": (
        "Back-off restarting failed container {word} in pod {word}-{hexid}-{hex4}_{word}({uuid})",
        'Failed to pull image "{word}.example.com/{word}:{version}": rpc error: code = NotFound desc = failed to pull and'
        " unpack image",
        'Readiness probe failed: Get "http://{ipport}/healthz": dial tcp {ipport}: connect: connection refused',
        "0/{int} nodes are available: {int} Insufficient cpu, {int} node(s) had untolerated taint",
        "Container {word} exceeded its local ephemeral storage limit {dqstr}.",
        "MountVolume.SetUp failed for volume {dqstr} : secret {dqstr} not found",
    ),
    "systemd": (
        "{word}.service: Main process exited, code=exited, status=1/FAILURE",
        "{word}.service: Scheduled restart job, restart counter is at {int}.",
        "Started Session {int} of User {user}.",
        "{word}.service: State 'stop-sigterm' timed out. Killing.",
        "Dependency failed for {word}.mount.",
    ),
    "cassandra": (
        "com.datastax.driver.core.exceptions.WriteTimeoutException: Cassandra timeout during SIMPLE write query at"
        " consistency QUORUM"
        " ({int} replica were required but only {int} acknowledged the write)",
        "com.datastax.driver.core.exceptions.NoHostAvailableException: All host(s) tried for query failed (tried: /{ipport}"
        " (com.datastax.driver.core.exceptions.OperationTimedOutException: [/{ipport}] Timed out waiting for server response))",
        "GCInspector.java:{int} - G1 Young Generation GC in {int}ms.  G1 Eden Space: {int} -> 0; G1 Old Gen: {int} -> {int};",
        "Batch for [{word}.{word}] is of size {size}, exceeding specified threshold of {size} by {size}.",
    ),
    "elasticsearch": (
        "[{word}-{int}] [{word}][{int}] failed to execute bulk item (index) index {[{word}][_doc][{int}], source[{hexid}]}",
        "ElasticsearchStatusException[Elasticsearch exception [type=version_conflict_engine_exception, reason=[{int}]:"
        " version conflict,"
        " required seqNo [{int}], primary term [{int}]. current document has seqNo [{int}] and primary term [{int}]]]",
        "Data too large, data for [<http_request>] would be [{int}/{size}], which is larger than the limit of [{int}/{size}]",
        "high disk watermark [90%] exceeded on [{hexid}][{word}-{int}][{path}] free: {size}[{float}%], shards will be"
        " relocated away from"
        " this node",
    ),
    "rabbitmq": (
        "closing AMQP connection <0.{int}.0> ({ipport} -> {ipport}): missed heartbeats from client, timeout: {int}s",
        "Channel error on connection <0.{int}.0> ({ipport} -> {ipport}, vhost: '/', user: '{user}'), channel {int}: operation"
        " basic.publish caused a channel exception not_found: no exchange '{word}' in vhost '/'",
        "PRECONDITION_FAILED - delivery acknowledgement on channel {int} timed out. Timeout value used: {int} ms.",
    ),
    "celery": (
        "Task {word}.tasks.charge[{uuid}] raised unexpected: Declined({qstr})",
        "Task {word}.tasks.charge[{uuid}] retry: Retry in {int}s: OperationalError({qstr})",
        "Hard time limit ({float}s) exceeded for {word}.tasks.report[{uuid}]",
        "celery.exceptions.NotRegistered: {qstr}",
        "kombu.exceptions.DecodeError: Expecting value: line {int} column {int} (char {int})",
    ),
    "ruby_php": (
        "ActiveRecord::RecordNotFound: Couldn't find Order with 'id'={int}",
        "NoMethodError: undefined method `total' for nil:NilClass",
        "PG::UniqueViolation: ERROR:  duplicate key value violates unique constraint {dqstr}",
        "PHP Fatal error:  Uncaught TypeError: {word}_total(): Argument #{int} ($amount) must be of type float, string given,"
        " called in"
        " {path}.php on line {int}",
        "PHP Warning:  mysqli_connect(): (HY000/2002): Connection refused in {path}.php on line {int}",
        "Net::ReadTimeout: Net::ReadTimeout with #<TCPSocket:(closed)>",
    ),
    "aws": (
        "An error occurred (ProvisionedThroughputExceededException) when calling the PutItem operation (reached max retries:"
        " {int}): The"
        " level of configured provisioned throughput for the table was exceeded.",
        "An error occurred (AccessDenied) when calling the GetObject operation: Access Denied",
        "An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist.",
        "com.amazonaws.services.s3.model.AmazonS3Exception: Slow Down (Service: Amazon S3; Status Code: 503; Error Code: 503"
        " Slow Down;"
        " Request ID: {hexid}; S3 Extended Request ID: {b64}; Proxy: null)",
        "RequestId: {uuid} Error: Runtime exited with error: signal: killed",
        "Task timed out after {float} seconds",
    ),
    "smtp": (
        "smtplib.SMTPRecipientsRefused: {'{email}': (550, b'5.1.1 <{email}>: Recipient address rejected: User unknown')}",
        "smtplib.SMTPServerDisconnected: Connection unexpectedly closed",
        "421 4.7.0 {host} Error: too many connections from {ip}",
        "status=bounced (host {host}[{ip}] said: 552 5.2.2 Mailbox of {user} is full)",
    ),
    "network_devices": (
        "%LINEPROTO-5-UPDOWN: Line protocol on Interface GigabitEthernet{int}/{int}, changed state to down",
        "%LINK-3-UPDOWN: Interface GigabitEthernet{int}/{int}, changed state to up",
        "%BGP-5-ADJCHANGE: neighbor {ip} Down BGP Notification sent",
        "%SEC-6-IPACCESSLOGP: list {int} denied tcp {ip}({int}) -> {ip}({int}), {int} packet",
    ),
    "routers": (
        'at=error code=H12 desc="Request timeout" method=GET path="{path}" host={host} request_id={uuid} fwd="{ip}"'
        " dyno=web.{int} connect={int}ms service={int}ms status=503 bytes=0 protocol=https",
        'at=error code=H10 desc="App crashed" method=GET path="{path}" host={host} request_id={uuid} fwd="{ip}"'
        " dyno= connect= service= status=503 bytes= protocol=https",
        'time="{time}" level=error msg="service \\"{word}\\" error: unable to find the IP address" providerName=docker'
        " container={word}-{hexid}",
        'time="{time}" level=error msg="Unable to obtain ACME certificate for domains" error="acme: error: 429 :: rate limited"'
        ' domains="{host}"',
        'time="{time}" level=error msg="Unable to obtain ACME certificate for domains" error="acme: error: 403 :: unauthorized"'
        ' domains="{host}"',
    ),
    "mongo_mssql": (
        "E11000 duplicate key error collection: {word}.{word} index: {word}_1 dup key: { {word}: {dqstr} }",
        "WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document"
        " transaction.",
        "pymongo.errors.ServerSelectionTimeoutError: {host}:{int}: [Errno 111] Connection refused, Timeout: {int}s, Topology"
        " Description:"
        " <TopologyDescription id: {hexid}, topology_type: Unknown>",
        "Microsoft.Data.SqlClient.SqlException (0x80131904): Transaction (Process ID {int}) was deadlocked on lock resources"
        " with another"
        " process and has been chosen as the deadlock victim. Rerun the transaction.",
        "Microsoft.Data.SqlClient.SqlException (0x80131904): Cannot insert the value NULL into column {qstr}, table {qstr};"
        " column does"
        " not allow nulls. INSERT fails.",
        "System.Data.SqlClient.SqlException: Timeout expired.  The timeout period elapsed prior to completion of the"
        " operation or the"
        " server is not responding.",
    ),
    "shop": (
        "shipment {uuid} for {user} cannot leave {word}: parcel is {float} kg, the limit is {float} kg",
        "refund of {float} EUR to card ending {hex4} was declined by {word} at {time}",
        "no price for article {word}-{int} on {time}",
        "vat number {hexid} of {email} is not valid in {word}",
        "invoice {int} was already paid on {time}",
        "invoice {int} was already cancelled on {time}",
        "account of {user} is locked since {time}",
        "booking {int} overlaps with booking {int} of {user}",
        "stock of {word} in {word} went below {neg}",
        "exchange rate {word}/{word} is older than {dur}",
    ),
}

USERS = (
    "alice",
    "bob",
    "carol",
    "dave",
    "erin",
    "webmaster",
    "oracle",
    "postgres",
    "jsmith",
    "m.keller",
    "pgadmin",
    "svc-billing",
)
WORDS = ("kestrel", "osprey", "falcon", "harrier", "merlin", "buzzard", "condor")
_SEGMENTS = ("var", "log", "data", "orders", "tmp", "etc", "usr", "home", "a1", "p4biom", "stage-2")
_CLASSES = (
    "Order",
    "InvoiceLine",
    "com.acme.Ledger",
    "org.acme.util.RateTable",
    "com.acme.stock.ItemView",
    "io.acme.Parcel",
)
_STATES = {
    "vmstate": ("Started", "Stopped", "Paused", "Resumed"),
    "astate": ("NEW", "UNASSIGNED", "ASSIGNED", "RUNNING", "COMMIT_PENDING"),
    "bstate": ("RUNNING", "ASSIGNED", "SUCCEEDED", "FAIL_CONTAINER_CLEANUP", "KILLED"),
    "hpcstate": ("unavailable", "available", "down", "active", "halted"),
}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def texts(formats: Mapping[str, Sequence[str]], each: int, seed: int) -> list[tuple[str, str]]:
    """`each` texts of every template, in an order of its own: (the template, a text of it)."""
    dice = random.Random(seed)
    made = [
        (template, _SLOT.sub(lambda slot: _SLOTS[slot[1]](dice), template))
        for templates in formats.values()
        for template in templates
        for _ in range(each)
    ]
    dice.shuffle(made)
    return made


def quality(groups: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """Pairwise precision and recall of (true group, found group)."""

    def pairs(names: Sequence[object]) -> int:
        counted: dict[object, int] = {}
        for name in names:
            counted[name] = counted.get(name, 0) + 1
        return sum(count * (count - 1) // 2 for count in counted.values())

    both = pairs(groups)
    found, true = pairs([found for _, found in groups]), pairs([true for true, _ in groups])
    return (both / found if found else 1.0), (both / true if true else 1.0)


def _host(dice: random.Random) -> str:
    return dice.choice(
        (
            f"web{dice.randint(1, 99)}.example.com",
            f"mesos-slave-{dice.randint(10, 99)}",
            f"node-{dice.randint(1, 300)}",
            f"ip-10-0-{dice.randint(0, 255)}-7.eu-west-1.compute.internal",
            f"db{dice.randint(1, 9)}",
            "cache.shop.internal",
        )
    )


def _ip(dice: random.Random) -> str:
    return ".".join(str(dice.randint(1, 254)) for _ in range(4))


def _time(dice: random.Random) -> str:
    month, day, year = dice.randint(1, 12), dice.randint(1, 28), dice.randint(2005, 2027)
    clock = f"{dice.randint(0, 23):02}:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}"
    name, weekday = _MONTHS[month - 1], dice.choice(_DAYS)
    return dice.choice(
        (
            f"{year}-{month:02}-{day:02}T{clock}.{dice.randint(0, 999):03}Z",
            f"{year}-{month:02}-{day:02} {clock},{dice.randint(0, 999):03}",
            f"{weekday} {name} {day:2} {clock} UTC {year}",
            f"{weekday}, {day:02} {name} {year} {clock} GMT",
            f"{day:02}/{name}/{year}:{clock} +0000",
            f"{name} {day:2} {clock}",
            f"{year}/{month:02}/{day:02} {clock}",
            f"{month:02}/{day:02}/{year} {clock}",
        )
    )


def _path(dice: random.Random) -> str:
    return (
        "/"
        + "/".join(dice.choice(_SEGMENTS) for _ in range(dice.randint(2, 5)))
        + dice.choice(("", f"/f{dice.randint(1, 99)}.log"))
    )


def _quoted(dice: random.Random) -> str:
    return dice.choice(
        (
            "order_id",
            "a b c",
            "12",
            dice.choice(USERS),
            f"SKU-{dice.randint(1, 999)}",
            "",
            "it is; empty, = [x]",
            "Zürich",
            "NoneType",
        )
    )


def _hex(dice: random.Random, digits: int) -> str:
    return "".join(dice.choice("0123456789abcdef") for _ in range(digits - 2)) + "3e"


_SLOTS: Mapping[str, Callable[[random.Random], str]] = {
    **{name: (lambda dice, of=states: dice.choice(of)) for name, states in _STATES.items()},
    "user": lambda dice: dice.choice(USERS),
    "word": lambda dice: dice.choice(WORDS),
    "topic": lambda dice: f"{dice.choice(WORDS)}.{dice.choice(('orders', 'refunds', 'stock'))}",
    "host": _host,
    "ip": _ip,
    "ipport": lambda dice: f"{_ip(dice)}:{dice.randint(1000, 65000)}",
    "mac": lambda dice: ":".join(_hex(dice, 4)[:2] for _ in range(6)),
    "int": lambda dice: str(
        dice.choice((dice.randint(0, 9), dice.randint(10, 999), dice.randint(1000, 10**12)))
    ),
    "neg": lambda dice: str(dice.choice((-1, -dice.randint(2, 2_000_000), -0.5))),
    "float": lambda dice: f"{dice.uniform(0, 500):.{dice.randint(1, 5)}f}",
    "hex": lambda dice: f"0x{_hex(dice, dice.choice((8, 16)))}",
    "hex4": lambda dice: f"{dice.randint(1000, 9999)}",
    "hexid": lambda dice: _hex(dice, 8),
    "uuid": lambda dice: str(uuid.UUID(int=dice.getrandbits(128), version=4)),
    "blk": lambda dice: f"blk_{dice.choice(('', '-'))}{dice.randint(10**17, 10**19)}",
    "path": _path,
    "winpath": lambda dice: (
        f"C:\\Windows\\{dice.choice(('WinSxS', 'Logs', 'Temp'))}\\x{dice.randint(1, 999)}.dll"
    ),
    "size": lambda dice: (
        f"{dice.uniform(0, 900):.1f} {dice.choice(('KB', 'MB', 'GB', 'B', 'MiB'))}"
    ),
    "dur": lambda dice: dice.choice(
        (
            f"{dice.randint(1, 900)}ms",
            f"{dice.uniform(0, 90):.2f}s",
            f"{dice.randint(1, 90)} seconds",
            f"{dice.randint(2, 59)} min",
        )
    ),
    "clock": lambda dice: (
        f"{dice.randint(0, 23):02}:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}"
    ),
    "time": _time,
    "version": lambda dice: (
        f"{dice.randint(0, 12)}.{dice.randint(0, 40)}.{dice.randint(0, 9000)}{dice.choice(('', '-rc1', '+b7'))}"
    ),
    "url": lambda dice: (
        f"https://{_host(dice)}/v1/{dice.choice(WORDS)}/{dice.randint(1, 9999)}?x={dice.randint(1, 9)}"
    ),
    "email": lambda dice: f"{dice.choice(USERS)}@{dice.choice(WORDS)}.example.org",
    "qstr": lambda dice: f"'{_quoted(dice)}'",
    "dqstr": lambda dice: f'"{_quoted(dice)}"',
    "class": lambda dice: dice.choice(_CLASSES),
    "dotted": lambda dice: f"com.{dice.choice(WORDS)}.{dice.choice(('ui', 'sync', 'music'))}",
    "status": lambda dice: dice.choice(("200", "202", "204", "300")),
    "list": lambda dice: ", ".join(
        dice.choice(WORDS) + dice.choice(("", "#0", "-1")) for _ in range(dice.randint(1, 6))
    ),
    "thread": lambda dice: dice.choice(
        (
            f"pool-{dice.randint(1, 9)}-thread-{dice.randint(1, 99)}",
            f"http-nio-8080-exec-{dice.randint(1, 200)}",
            f"Thread-{dice.randint(0, 99)}",
        )
    ),
    "amq": lambda dice: (
        f"{dice.choice(WORDS)}-{dice.randint(30000, 60000)}-{dice.randint(10**12, 2 * 10**12)}-{dice.randint(1, 9)}"
        f":{dice.randint(1, 9)}:1:{dice.randint(1, 99)}"
    ),
    "bglnode": lambda dice: (
        f"R{dice.randint(0, 63):02}-M{dice.randint(0, 1)}-L{dice.randint(0, 3)}-U{dice.randint(1, 20)}-A"
    ),
    "file": lambda dice: f"{dice.choice(WORDS)}{dice.randint(0, 9)}.cc",
    "b64": lambda dice: "".join(dice.choice("abcdefXYZ0123456789+/") for _ in range(30)) + "==",
    "bglio": lambda dice: f"bglio{dice.randint(1, 999)}",
}
_SLOT = re.compile(r"\{(" + "|".join(sorted(_SLOTS, key=len, reverse=True)) + r")\}")
