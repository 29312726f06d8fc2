import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The statements of the wire contract by name, their parameters by name: JDBC knows only places. */
final class ContractSql {
    private static final Pattern PARAMETER = Pattern.compile("%\\((\\w+)\\)s");
    private static final Map<String, String> STATEMENTS = read();

    private ContractSql() {}

    static PreparedStatement prepare(Connection connection, String name, Map<String, Object> values) throws SQLException {
        List<String> names = new ArrayList<>();
        Matcher found = PARAMETER.matcher(STATEMENTS.get(name));
        PreparedStatement prepared = connection.prepareStatement(found.replaceAll(one -> {
            names.add(one.group(1));
            return "?";
        }));
        for (int place = 0; place < names.size(); place++) {
            if (!values.containsKey(names.get(place))) {
                throw new IllegalArgumentException(name + " needs " + names.get(place));
            }
            prepared.setObject(place + 1, values.get(names.get(place)));
        }
        return prepared;
    }

    /** A list with one element: this example handles one message at a time. */
    static Array one(Connection connection, String type, Object value) throws SQLException {
        if (value instanceof byte[]) { // the driver takes bytes only so
            return connection.createArrayOf(type, new byte[][] {(byte[]) value});
        }
        return connection.createArrayOf(type, new Object[] {value});
    }

    private static Map<String, String> read() {
        try (InputStream file = ContractSql.class.getResourceAsStream("/wire-contract.sql")) {
            String text = new String(file.readAllBytes(), StandardCharsets.UTF_8);
            Map<String, String> found = new HashMap<>();
            for (String part : text.split("(?m)^-- name: ")) {
                int name = part.indexOf(':'), line = part.indexOf('\n'), end = part.lastIndexOf(';');
                if (!part.startsWith("-- ")) {
                    found.put(part.substring(0, name), part.substring(line + 1, end));
                }
            }
            return found;
        } catch (IOException failed) {
            throw new ExceptionInInitializerError(failed);
        }
    }
}
