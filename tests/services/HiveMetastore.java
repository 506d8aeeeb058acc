import java.io.File;
import java.util.Timer;
import java.util.TimerTask;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnStore;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.hadoop.hive.shims.ShimLoader;

/** A Hive Metastore over a Derby database: `HiveMetastore PORT WAREHOUSE DATABASE`. All interfaces, without log-in. */
public class HiveMetastore {
    public static void main(String[] args) throws Throwable {
        System.setProperty("javax.jdo.option.ConnectionURL", "jdbc:derby:" + args[2] + ";create=true");
        System.setProperty("datanucleus.schema.autoCreateAll", "true");
        System.setProperty("datanucleus.connectionPoolingType", "HikariCP");  // the pool that Spark brings
        System.setProperty("hive.metastore.schema.verification", "false");
        System.setProperty("hive.metastore.warehouse.dir", args[1]);
        HiveConf conf = new HiveConf();
        if (!new File(args[2]).exists()) {
            TxnDbUtil.prepDb(conf);  // tables for locks, which are not among those that are created at the first use
        }
        final TxnStore store = TxnUtils.getTxnStore(conf);
        new Timer(true).schedule(new TimerTask() {  // as a metastore's housekeeper does
            public void run() {
                store.performTimeOuts();  // locks of clients that are gone
            }
        }, 1000, 1000);
        HiveMetaStore.startMetaStore(Integer.parseInt(args[0]), ShimLoader.getHadoopThriftAuthBridge(), conf);
    }
}
