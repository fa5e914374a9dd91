import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** The Hive Metastore, once its database has the tables for locks, which Hive's schematool makes elsewhere. */
public final class HiveMetastore {
  public static void main(String[] args) throws Throwable {
    TxnDbUtil.prepDb(new HiveConf());
    HiveMetaStore.main(args);
  }
}
