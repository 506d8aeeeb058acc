import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.security.HadoopThriftAuthBridge;

/** A Hive Metastore 4 over a Derby database in memory: `Hive4Metastore PORT WAREHOUSE`. All interfaces, without log-in. */
public class Hive4Metastore {
    private static final String DATABASE = "jdbc:derby:memory:metastore;create=true";

    public static void main(String[] args) throws Throwable {
        System.setProperty("javax.jdo.option.ConnectionURL", DATABASE);
        System.setProperty("datanucleus.schema.autoCreateAll", "true");
        System.setProperty("hive.metastore.schema.verification", "false");
        System.setProperty("hive.metastore.warehouse.dir", args[1]);
        makeTablesForLocks();
        Configuration conf = MetastoreConf.newMetastoreConf();
        HiveMetaStore.startMetaStore(Integer.parseInt(args[0]), HadoopThriftAuthBridge.getBridge(), conf);
    }

    /** Tables for locks are not among those that are created at the first use; the jars have no schema of them. */
    private static void makeTablesForLocks() throws Exception {
        Connection connection = DriverManager.getConnection(DATABASE);
        Statement statement = connection.createStatement();
        statement.execute(
            "CREATE TABLE HIVE_LOCKS (HL_LOCK_EXT_ID BIGINT NOT NULL, HL_LOCK_INT_ID BIGINT NOT NULL, "
            + "HL_TXNID BIGINT NOT NULL, HL_DB VARCHAR(128) NOT NULL, HL_TABLE VARCHAR(256), "
            + "HL_PARTITION VARCHAR(767), HL_LOCK_STATE CHAR(1) NOT NULL, HL_LOCK_TYPE CHAR(1) NOT NULL, "
            + "HL_LAST_HEARTBEAT BIGINT NOT NULL, HL_ACQUIRED_AT BIGINT, HL_USER VARCHAR(128) NOT NULL, "
            + "HL_HOST VARCHAR(128) NOT NULL, HL_HEARTBEAT_COUNT INTEGER, HL_AGENT_INFO VARCHAR(128), "
            + "HL_BLOCKEDBY_EXT_ID BIGINT, HL_BLOCKEDBY_INT_ID BIGINT, PRIMARY KEY (HL_LOCK_EXT_ID, HL_LOCK_INT_ID))");
        statement.execute("CREATE TABLE NEXT_LOCK_ID (NL_NEXT BIGINT NOT NULL)");
        statement.execute("INSERT INTO NEXT_LOCK_ID VALUES (1)");
        statement.execute(
            "CREATE TABLE AUX_TABLE (MT_KEY1 VARCHAR(128) NOT NULL, MT_KEY2 BIGINT NOT NULL, "
            + "MT_COMMENT VARCHAR(255), PRIMARY KEY (MT_KEY1, MT_KEY2))");
        connection.close();
    }
}
