import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import org.apache.hadoop.hive.metastore.HiveMetaStore;

/** The metastore of Hive 4, once its database has what a lock needs, of `hive-schema-4.0.0.derby.sql`. */
public final class HiveMetastore4 {
  private static final String[] TABLES = {
    "HIVE_LOCKS (HL_LOCK_EXT_ID bigint NOT NULL, HL_LOCK_INT_ID bigint NOT NULL, HL_TXNID bigint NOT NULL,"
        + " HL_DB varchar(128) NOT NULL, HL_TABLE varchar(128), HL_PARTITION varchar(767),"
        + " HL_LOCK_STATE char(1) NOT NULL, HL_LOCK_TYPE char(1) NOT NULL, HL_LAST_HEARTBEAT bigint NOT NULL,"
        + " HL_ACQUIRED_AT bigint, HL_USER varchar(128) NOT NULL, HL_HOST varchar(128) NOT NULL,"
        + " HL_HEARTBEAT_COUNT integer, HL_AGENT_INFO varchar(128), HL_BLOCKEDBY_EXT_ID bigint,"
        + " HL_BLOCKEDBY_INT_ID bigint, PRIMARY KEY (HL_LOCK_EXT_ID, HL_LOCK_INT_ID))",
    "NEXT_LOCK_ID (NL_NEXT bigint NOT NULL)",
  };

  public static void main(String[] args) throws Throwable {
    String url = System.getProperty("javax.jdo.option.ConnectionURL");
    try (Connection database = DriverManager.getConnection(url, "APP", "mine");
        Statement statement = database.createStatement()) {
      for (String table : TABLES) {
        statement.execute("CREATE TABLE APP." + table);
      }
      statement.execute("INSERT INTO APP.NEXT_LOCK_ID VALUES (1)");
    }
    HiveMetaStore.main(args);
  }
}
