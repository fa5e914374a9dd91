package dvsync;

import io.delta.storage.LogStore;
import io.delta.storage.commit.Commit;
import io.delta.storage.commit.CommitCoordinatorClient;
import io.delta.storage.commit.CommitResponse;
import io.delta.storage.commit.GetCommitsResponse;
import io.delta.storage.commit.TableDescriptor;
import io.delta.storage.commit.UpdatedActions;
import io.delta.storage.commit.actions.AbstractMetadata;
import io.delta.storage.commit.actions.AbstractProtocol;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedCommitCoordinatorBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What the catalogs of tables have ratified, by log, as Delta asks for it: of Spark's catalog `dvsync`, which has no
 * tables. Janino compiles this, so there are no type parameters.
 */
public final class RatifiedCommits
        implements CommitCoordinatorClient, CatalogOwnedCommitCoordinatorBuilder, CatalogPlugin {
    private final Map answers = new ConcurrentHashMap();

    /** Commits of the log at `log` up to `newest`: their files, whose names begin with the version. */
    public void answer(Path log, long newest, FileStatus[] files) {
        List commits = new ArrayList();
        for (int i = 0; i < files.length; i++) {
            long version = Long.parseLong(files[i].getPath().getName().substring(0, 20));
            commits.add(new Commit(version, files[i], files[i].getModificationTime()));
        }
        this.answers.put(log, new GetCommitsResponse(commits, newest));
    }

    public GetCommitsResponse getCommits(TableDescriptor table, Long start, Long end) {
        return (GetCommitsResponse) this.answers.get(table.getLogPath());
    }

    public void initialize(String name, CaseInsensitiveStringMap options) {}

    public String name() {
        return "dvsync";
    }

    public String getName() {
        return this.name();
    }

    public CommitCoordinatorClient build(SparkSession session, scala.collection.immutable.Map conf) {
        return this;
    }

    public CommitCoordinatorClient buildForCatalog(SparkSession session, String catalog) {
        return this;
    }

    public boolean semanticEquals(CommitCoordinatorClient other) {
        return this == other;
    }

    public Map registerTable(
            Path log, Optional table, long version, AbstractMetadata metadata, AbstractProtocol protocol) {
        throw new UnsupportedOperationException("dvsync only reads");
    }

    public CommitResponse commit(
            LogStore store, Configuration conf, TableDescriptor table, long version, Iterator actions,
            UpdatedActions updated) {
        throw new UnsupportedOperationException("dvsync only reads");
    }

    public void backfillToVersion(
            LogStore store, Configuration conf, TableDescriptor table, long version, Long known) {
        throw new UnsupportedOperationException("dvsync only reads");
    }
}
