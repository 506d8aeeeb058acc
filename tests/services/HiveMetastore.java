import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.shims.ShimLoader;

/** A Hive Metastore over a Derby database in memory: `HiveMetastore PORT WAREHOUSE`. All interfaces, without log-in. */
public class HiveMetastore {
    public static void main(String[] args) throws Throwable {
        System.setProperty("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true");
        System.setProperty("datanucleus.schema.autoCreateAll", "true");
        System.setProperty("datanucleus.connectionPoolingType", "HikariCP");  // the pool that Spark brings
        System.setProperty("hive.metastore.schema.verification", "false");
        System.setProperty("hive.metastore.warehouse.dir", args[1]);
        HiveConf conf = new HiveConf();
        TxnDbUtil.prepDb(conf);  // tables for locks, which are not among those that are created at the first use
        HiveMetaStore.startMetaStore(Integer.parseInt(args[0]), ShimLoader.getHadoopThriftAuthBridge(), conf);
    }
}
