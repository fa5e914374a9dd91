package dvsync;

import io.delta.storage.LogStore;
import io.delta.storage.commit.CommitCoordinatorClient;
import io.delta.storage.commit.uccommitcoordinator.UCClient;
import io.delta.storage.commit.uccommitcoordinator.UCCommitCoordinatorClient;
import java.util.HashMap;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedCommitCoordinatorBuilder;
import org.apache.spark.sql.delta.coordinatedcommits.InMemoryUCClient;
import org.apache.spark.sql.delta.coordinatedcommits.InMemoryUCCommitCoordinator;

/**
 * Delta's own client of Unity before Delta's own catalog in memory. It publishes before a commit returns, and nothing
 * above the version that a session sets. Janino compiles this, so there are no type parameters.
 */
public final class UnityCoordinator extends UCCommitCoordinatorClient implements CatalogOwnedCommitCoordinatorBuilder {
    public UnityCoordinator() {
        super(new HashMap(), (UCClient) new InMemoryUCClient("dvsync", new InMemoryUCCommitCoordinator()));
    }

    public String getName() {
        return "dvsync";
    }

    public CommitCoordinatorClient build(SparkSession session, scala.collection.immutable.Map conf) {
        return this;
    }

    public CommitCoordinatorClient buildForCatalog(SparkSession session, String catalog) {
        return this;
    }

    protected Future executeAsync(Callable task) {
        FutureTask done = new FutureTask(task);
        done.run();
        return done;
    }

    protected boolean backfillSingleCommit(
            LogStore store, Configuration conf, Path log, long version, FileStatus staged, Boolean failOnException) {
        String max = SparkSession.active().conf().get("dvsync.published.max", String.valueOf(Long.MAX_VALUE));
        return version <= Long.parseLong(max)
                && super.backfillSingleCommit(store, conf, log, version, staged, failOnException);
    }
}
